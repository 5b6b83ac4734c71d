//! The descriptor handoff: a sent message arrives unchanged, and any other packet is refused.

use forebay_contract::{
    PATH_BYTES_MAX,
    message::{DescriptorHandoff, HEADER_BYTES, Malformed},
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn packet(message: &DescriptorHandoff<'_>) -> Vec<u8> {
    [message.header().as_slice(), message.path].concat()
}

fn sample(path: &[u8]) -> DescriptorHandoff<'_> {
    DescriptorHandoff {
        run: 1,
        opened_at: 2,
        descriptor: 3,
        is_library: true,
        wait: Some(0),
        read_bytes: Some(4),
        path,
    }
}

fn paths() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1u8.., 0..200).prop_map(|rest| [b"/".as_slice(), &rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_sent_arrives(run: u64, opened_at: u64, descriptor: i32, is_library: bool, wait in prop::option::of(0..u32::MAX), read_bytes in prop::option::of(0..u64::MAX), path in paths()) {
        let message = DescriptorHandoff { run, opened_at, descriptor, is_library, wait, read_bytes, path: &path };
        let packet = packet(&message);
        prop_assert_eq!(DescriptorHandoff::parse(&packet), Ok(message));
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = DescriptorHandoff::parse(&bytes) {
            prop_assert_eq!(packet(&message).len(), bytes.len());
        }
    }

    #[test]
    fn a_damaged_packet_keeps_the_rules(path in paths(), at in 0usize..240, byte: u8) {
        let mut bytes = packet(&sample(&path));
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(message) = DescriptorHandoff::parse(&bytes) {
            prop_assert!(message.path.starts_with(b"/") && !message.path.contains(&0));
            prop_assert!(message.path.len() <= PATH_BYTES_MAX);
        }
    }

    #[test]
    fn a_cut_or_lengthened_packet_is_refused(path in paths(), cut in 1usize..240) {
        let whole = packet(&sample(&path));
        let short = &whole[..whole.len() - cut.min(whole.len())];
        prop_assert!(DescriptorHandoff::parse(short).is_err());
        let long = [whole.as_slice(), b"x"].concat();
        prop_assert_eq!(DescriptorHandoff::parse(&long), Err(Malformed::Length));
    }
}

#[test]
fn each_rule_has_its_refusal() {
    let good = packet(&sample(b"/a"));
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        bytes
    };
    assert_eq!(DescriptorHandoff::parse(&[]), Err(Malformed::Length));
    assert_eq!(DescriptorHandoff::parse(&good[..HEADER_BYTES - 1]), Err(Malformed::Length));
    assert_eq!(DescriptorHandoff::parse(&changed(0)), Err(Malformed::Magic));
    assert_eq!(DescriptorHandoff::parse(&changed(4)), Err(Malformed::Version));
    assert_eq!(DescriptorHandoff::parse(&changed(32)), Err(Malformed::Length));
    assert_eq!(DescriptorHandoff::parse(&packet(&sample(b"relative"))), Err(Malformed::Path));
    assert_eq!(DescriptorHandoff::parse(&packet(&sample(b"/nul\0inside"))), Err(Malformed::Path));
    let longest = [b"/".as_slice(), &vec![b'x'; PATH_BYTES_MAX - 1]].concat();
    assert!(DescriptorHandoff::parse(&packet(&sample(&longest))).is_ok());
    let longer = [longest.as_slice(), b"x"].concat();
    assert_eq!(DescriptorHandoff::parse(&packet(&sample(&longer))), Err(Malformed::Length));
}
