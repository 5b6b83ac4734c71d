//! Texts are read as they were written, and anything else is refused.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{DIGEST_BYTES, EntryKind, Layout, Placement, Section, UNKNOWN_DIGEST};

const SECRET: &[u8] = b"secret";

fn kind(placement: Placement, dtype: &str, length: u64) -> EntryKind {
    let layout = Layout {
        dtype: dtype.into(),
        shape: vec![length],
        strides: vec![1],
        device: "cpu".into(),
    };
    EntryKind { placement, layout, length }
}

fn section(name: &str, tensors: usize) -> Arc<Section> {
    let tensor = |number| format!("{name}/{number}\n\u{e9}\"");
    let paths = [name.to_owned()].into_iter().chain((0..tensors).map(tensor)).collect();
    let kinds = vec![kind(Placement::Replicated, "value", 2), kind(Placement::PerRank, "uint8", 7)];
    let kind_of = (0..=tensors).map(|number| number.min(1)).collect();
    Arc::new(Section::new(paths, kinds, kind_of).unwrap())
}

fn manifest() -> Manifest {
    let whole = CapturedSection::new(section("model", 2), vec![]).unwrap();
    let part = CapturedSection::new(section("optimizer", 3), vec![(1, 0, 64), (3, 1, 0)]).unwrap();
    let mut digests: Vec<u8> = (1..=7 * DIGEST_BYTES).map(|number| number as u8).collect();
    for unknown in [4, 6] {
        digests[unknown * DIGEST_BYTES..][..DIGEST_BYTES].copy_from_slice(&UNKNOWN_DIGEST);
    }
    Manifest {
        framework: "torch 2".into(),
        rank: 1,
        ranks: 2,
        absent: vec!["ema".into()],
        sections: vec![whole, part],
        digests,
    }
}

fn header() -> StateHeader {
    StateHeader {
        job: "trunk".into(),
        rank: 1,
        epoch: 2,
        step: 3,
    }
}

fn read(text: &[u8]) -> Result<(StateHeader, Manifest), InvalidState> {
    read_state(SECRET, text, &mut SectionCache::default())
}

#[test]
fn a_state_is_read_as_it_was_written() {
    let text = write_state(SECRET, &header(), &manifest());
    assert_eq!(read(&text).unwrap(), (header(), manifest()));
    assert_eq!(
        read_state_unverified(&text, &mut SectionCache::default()).unwrap(),
        (header(), manifest())
    );
    let mut known: SectionCache = manifest().sections.iter().map(|held| Arc::clone(held.section())).collect();
    let (_, again) = read_state(SECRET, &text, &mut known).unwrap();
    let (_, once_more) = read_state(SECRET, &text, &mut known).unwrap();
    assert!(
        again
            .sections
            .iter()
            .zip(&once_more.sections)
            .all(|(one, other)| Arc::ptr_eq(one.section(), other.section()))
    );
    let entries: Vec<_> = again
        .entries()
        .map(|(path, placement, digest)| (path.len(), placement, digest[0]))
        .collect();
    assert_eq!(entries[..2], [(5, Placement::Replicated, 1), (11, Placement::PerRank, 17)]);
}

#[test]
fn a_schema_is_read_as_it_was_written() {
    let expected: Vec<_> = manifest().sections.into_iter().zip([b"{}".to_vec(), Vec::new()]).collect();
    let text = write_schema(SECRET, &header(), &expected);
    assert_eq!(read_schema(SECRET, &text).unwrap(), (header(), expected));
    assert!(
        read(&text)
            .unwrap_err()
            .to_string()
            .contains("not of the format 'forebay clone state ")
    );
    for rest in ["", "{}", "{}\n[]", "{}\n[]\n"] {
        let text = write(SCHEMA, SECRET, |text| {
            text.extend([&to_json(&header())[..], b"\n", rest.as_bytes()].concat());
        });
        assert!(
            read_schema(SECRET, &text)
                .unwrap_err()
                .to_string()
                .starts_with("not a schema of states: ")
        );
    }
}

#[test]
fn a_text_by_another_secret_is_refused() {
    let text = write_state(b"another", &header(), &manifest());
    assert!(read(&text).unwrap_err().to_string().contains("failed HMAC verification"));
    let text = write_state(SECRET, &header(), &manifest());
    for wrong in ["{}", "[]\n{}", ""] {
        let text = write(STATE, SECRET, |text| text.extend(wrong.as_bytes()));
        assert!(read(&text).unwrap_err().to_string().starts_with("invalid header of a state: "));
    }
    for at in [text.len() - 1, text.len() / 2, 30] {
        let mut altered = text.clone();
        altered[at] ^= 1;
        assert!(read(&altered).is_err(), "{at}");
    }
}

#[test]
fn an_invalid_manifest_is_refused() {
    let refused = |change: fn(&mut Manifest), why: &str| {
        let mut changed = manifest();
        change(&mut changed);
        let error = read(&write_state(SECRET, &header(), &changed)).unwrap_err().to_string();
        assert!(error.starts_with("not a manifest: ") && error.contains(why), "{error}");
    };
    refused(|manifest| manifest.sections.clear(), "no sections");
    refused(|manifest| manifest.digests.truncate(5), "one digest for each entry");
    refused(
        |manifest| manifest.sections[1] = manifest.sections[0].clone(),
        "one digest for each entry",
    );
    refused(
        |manifest| {
            manifest.sections[1] = CapturedSection::new(section("model", 3), vec![]).unwrap();
        },
        "occurs twice",
    );
    let part = |places: &[(u64, u64, u64)]| CapturedSection::new(section("model", 2), places.to_vec());
    for wrong in [&[(0, 0, 0)][..], &[(3, 0, 0)], &[(2, 0, 0), (1, 0, 0)], &[(1, 0, 1 << 62)]] {
        assert!(part(wrong).is_err(), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn any_change_of_a_text_is_refused(at in 0_usize..1500, byte: u8) {
        let mut text = write_state(SECRET, &header(), &manifest());
        let at = at % text.len();
        prop_assume!(text[at] != byte);
        text[at] = byte;
        // A capital letter is the same digit of the tag.
        prop_assert!(read(&text).is_err() || text.to_ascii_lowercase() == write_state(SECRET, &header(), &manifest()));
        let _ = read_state_unverified(&text, &mut SectionCache::default());
    }
}
