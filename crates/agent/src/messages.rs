//! Ties `CONTRACT_VERSION` to the messages between processes: one that changes without a new version fails this test.
//! `contract/src/layout.rs` ties the layouts of shared memory.

use forebay_contract::{VERSIONS, hash_bytes};

use crate::{
    forks,
    host::refusal::{Refusal, RefusalKind},
    samples, tiering,
};

#[test]
fn a_message_that_changes_needs_a_new_version() {
    let refusal = Refusal::new(RefusalKind::Taken, "why");
    let mut messages = forks::protocol::tests::messages(refusal.clone());
    messages.extend(samples::protocol::tests::messages(refusal.clone()));
    messages.extend(tiering::protocol::tests::messages(refusal));
    let digest = messages.iter().fold(0, |digest, message| hash_bytes(digest, message.as_bytes()));
    assert_eq!(
        VERSIONS.last().map(|version| version.messages),
        Some(digest),
        "a message has changed: add a version with this digest of messages to contract/src/version.rs: {digest:#018x}"
    );
}

#[test]
fn another_field_is_another_digest() {
    let one = serde_json::to_string(&Refusal::from("why")).unwrap();
    let other = one.replace("\"why\":", "\"reason\":");
    assert_ne!(hash_bytes(0, one.as_bytes()), hash_bytes(0, other.as_bytes()));
}
