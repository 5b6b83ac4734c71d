//! Placement: examples, then properties over any sequence of events.

use std::collections::BTreeMap;

use forebay_policy::fill_first::{BACK_OFF_FIRST_MS, BACK_OFF_MAX_MS};
use forebay_policy::{Action, CopyId, Event, FillFirst, PlacementRefusal, Space, TierIndex, step};
use proptest::prelude::*;

const TOP: TierIndex = TierIndex(0);
const NEXT: TierIndex = TierIndex(1);

fn tiers(specs: &[(u64, u64)]) -> FillFirst {
    FillFirst::new(specs.iter().map(|&(bytes, inodes)| Space { bytes, inodes }))
}

fn room(bytes: u64, inodes: u64) -> Event {
    Event::Room(TOP, Space { bytes, inodes })
}

fn offer(state: &mut FillFirst, copy: u64, size: u64, now_ms: u64) -> Result<usize, PlacementRefusal> {
    match step(
        state,
        Event::Offer {
            copy: CopyId(copy),
            size,
            now_ms,
        },
    ) {
        Action::Place { copy: placed, tier } => {
            assert_eq!(placed, CopyId(copy));
            Ok(tier.0)
        }
        Action::Refuse { reason, .. } => Err(reason),
        Action::Nothing => panic!("an offer is always answered"),
    }
}

#[test]
fn top_tier_first_then_the_next_and_a_large_file_does_not_end_placement() {
    let mut state = tiers(&[(100, 10), (1_000, 10)]);
    assert_eq!(offer(&mut state, 1, 60, 0), Ok(0));
    assert_eq!(offer(&mut state, 2, 60, 0), Ok(1));
    assert_eq!(offer(&mut state, 3, 5_000, 0), Err(PlacementRefusal::TooLarge));
    assert_eq!(offer(&mut state, 4, 950, 0), Err(PlacementRefusal::Quota));
    assert_eq!(offer(&mut state, 5, 40, 0), Ok(0), "smaller ones still go to the top");
    assert_eq!(state.room_hint(0), 940);
}

#[test]
fn s9_inodes_are_a_quota_too() {
    let mut state = tiers(&[(100, 2), (100, 1)]);
    assert_eq!([1, 2, 3].map(|copy| offer(&mut state, copy, 0, 0)), [Ok(0), Ok(0), Ok(1)]);
    assert_eq!(offer(&mut state, 4, 0, 0), Err(PlacementRefusal::Quota));
    step(&mut state, Event::Removed { tier: TOP, size: 0 });
    assert_eq!(offer(&mut state, 4, 0, 0), Ok(0));
}

#[test]
fn f20_one_copy_has_one_place() {
    let mut state = tiers(&[(100, 10)]);
    assert_eq!(offer(&mut state, 1, 10, 0), Ok(0));
    assert_eq!(offer(&mut state, 1, 10, 0), Err(PlacementRefusal::InFlight));
    assert_eq!(state.used_bytes(TOP), 10);
    step(&mut state, Event::Dropped(CopyId(1)));
    step(&mut state, Event::Dropped(CopyId(1)));
    assert_eq!((state.used_bytes(TOP), state.used_inodes(TOP), state.in_flight()), (0, 0, 0));
}

#[test]
fn f1_a_full_tier_backs_off_and_smaller_files_are_still_tried() {
    let mut state = tiers(&[(1 << 30, 100), (1 << 30, 100)]);
    assert_eq!(offer(&mut state, 1, 1_000, 0), Ok(0));
    step(
        &mut state,
        Event::Full {
            tier: TOP,
            size: 1_000,
            now_ms: 0,
        },
    );
    step(&mut state, Event::Dropped(CopyId(1)));
    assert_eq!(offer(&mut state, 2, 1_000, 1), Ok(1));
    assert_eq!(offer(&mut state, 3, 400, 1), Ok(0));
    step(&mut state, Event::Published(CopyId(3)));
    assert_eq!(
        offer(&mut state, 4, 1_000, 2),
        Ok(1),
        "a small one that fitted shows nothing about large ones"
    );
    assert_eq!(offer(&mut state, 5, 1_000, BACK_OFF_FIRST_MS), Ok(0));
    step(&mut state, Event::Published(CopyId(5)));
    assert_eq!(offer(&mut state, 6, 1_000, BACK_OFF_FIRST_MS), Ok(0));
}

#[test]
fn f1_back_off_doubles_up_to_its_bound() {
    let mut state = tiers(&[(1 << 30, 100)]);
    let (mut now_ms, mut expected) = (5, BACK_OFF_FIRST_MS);
    for copy in 0..12 {
        assert_eq!(offer(&mut state, copy, 10, now_ms), Ok(0));
        step(
            &mut state,
            Event::Full {
                tier: TOP,
                size: 0,
                now_ms,
            },
        );
        step(&mut state, Event::Dropped(CopyId(copy)));
        assert_eq!(offer(&mut state, 100, 0, now_ms + expected - 1), Err(PlacementRefusal::BackingOff));
        assert_eq!(state.room_hint(now_ms), 0);
        now_ms += expected;
        expected = (expected * 2).min(BACK_OFF_MAX_MS);
    }
}

#[test]
fn p8_the_free_floor_holds_for_copies_in_flight_too() {
    let mut state = tiers(&[(1 << 30, 100)]);
    step(&mut state, room(3 * 4096, 10));
    assert_eq!(offer(&mut state, 1, 4097, 0), Ok(0), "takes two blocks");
    assert_eq!(offer(&mut state, 2, 4097, 0), Err(PlacementRefusal::Floor));
    step(&mut state, room(3 * 4096, 10));
    assert_eq!(
        offer(&mut state, 2, 4097, 0),
        Err(PlacementRefusal::Floor),
        "an observation does not show what is still to be written"
    );
    assert_eq!(offer(&mut state, 3, 4096, 0), Ok(0));
    step(&mut state, Event::Dropped(CopyId(1)));
    assert_eq!(offer(&mut state, 2, 4097, 0), Ok(0));
    step(&mut state, room(1 << 20, 2));
    assert_eq!(
        offer(&mut state, 4, 1, 0),
        Err(PlacementRefusal::Floor),
        "the two in flight take the last inodes"
    );
}

#[test]
fn f8_a_tier_that_is_off_takes_nothing_and_keeps_its_sums() {
    let mut state = tiers(&[(100, 10), (100, 10)]);
    assert_eq!(offer(&mut state, 1, 50, 0), Ok(0));
    step(&mut state, Event::Off(TOP));
    assert_eq!(offer(&mut state, 2, 50, 0), Ok(1));
    step(&mut state, Event::Off(NEXT));
    assert_eq!(offer(&mut state, 3, 50, 0), Err(PlacementRefusal::Off));
    assert_eq!((state.used_bytes(TOP), state.room_hint(0)), (50, 0));
    step(&mut state, Event::On(TOP));
    assert_eq!(offer(&mut state, 3, 50, 0), Ok(0));
}

#[test]
fn an_adopted_copy_beyond_a_quota_that_shrank_is_refused() {
    let mut state = tiers(&[(100, 10)]);
    let adopt = |copy, size| Event::Adopt {
        copy: CopyId(copy),
        size,
        tier: TOP,
    };
    assert_eq!(
        step(&mut state, adopt(1, 80)),
        Action::Place {
            copy: CopyId(1),
            tier: TOP
        }
    );
    assert_eq!(
        step(&mut state, adopt(2, 80)),
        Action::Refuse {
            copy: CopyId(2),
            reason: PlacementRefusal::Quota
        }
    );
    assert_eq!(
        step(&mut state, adopt(3, 20)),
        Action::Place {
            copy: CopyId(3),
            tier: TOP
        }
    );
    assert_eq!((state.used_bytes(TOP), state.in_flight()), (100, 0));
}

#[test]
fn p8_what_is_still_to_be_adopted_counts_against_new_copies() {
    let mut state = tiers(&[(100, 3)]);
    let expect = |bytes, inodes| Event::Expect(TOP, Space { bytes, inodes });
    step(&mut state, expect(70, 2));
    assert_eq!((state.room_hint(0), state.used_bytes(TOP)), (30, 0));
    assert_eq!(offer(&mut state, 1, 31, 0), Err(PlacementRefusal::Quota));
    assert_eq!(offer(&mut state, 1, 30, 0), Ok(0));
    assert_eq!(
        offer(&mut state, 2, 0, 0),
        Err(PlacementRefusal::Quota),
        "the third inode is the last"
    );
    for (copy, size) in [(8, 60), (9, 10)] {
        let adopt = Event::Adopt {
            copy: CopyId(copy),
            size,
            tier: TOP,
        };
        assert!(matches!(step(&mut state, adopt), Action::Place { .. }), "its room was kept");
    }
    assert_eq!((state.used_bytes(TOP), state.room_hint(0)), (100, 0));
    step(&mut state, Event::Removed { tier: TOP, size: 60 });
    step(&mut state, expect(60, 1));
    assert_eq!(state.room_hint(0), 0);
    step(&mut state, expect(0, 0));
    assert_eq!(state.room_hint(0), 60, "no more came");
}

#[test]
fn p8_what_could_not_be_removed_counts_until_it_is_gone() {
    let mut state = tiers(&[(100, 2)]);
    assert_eq!(offer(&mut state, 1, 80, 0), Ok(0));
    step(&mut state, Event::Published(CopyId(1)));
    step(&mut state, Event::Removed { tier: TOP, size: 80 });
    let left = |bytes, inodes| Event::Left(TOP, Space { bytes, inodes });
    step(&mut state, left(80, 1));
    assert_eq!((state.used_bytes(TOP), state.room_hint(0)), (0, 20));
    assert_eq!(offer(&mut state, 2, 21, 0), Err(PlacementRefusal::Quota));
    assert_eq!(offer(&mut state, 2, 0, 0), Ok(0));
    assert_eq!(offer(&mut state, 3, 0, 0), Err(PlacementRefusal::Quota), "its inode counts too");
    step(&mut state, left(0, 0));
    assert_eq!(offer(&mut state, 3, 100, 0), Ok(0));
}

fn spaces(bytes: u64, inodes: u64) -> impl Strategy<Value = Space> {
    (0..bytes, 0..inodes).prop_map(|(bytes, inodes)| Space { bytes, inodes })
}

fn any_event() -> impl Strategy<Value = Event> {
    let copy = (0..12_u64).prop_map(CopyId);
    let tier = (0..4_usize).prop_map(TierIndex);
    let size = prop_oneof![4 => 0..60_u64, 1 => 0..20_000_u64, 1 => Just(u64::MAX)];
    let now_ms = 0..200_000_u64;
    prop_oneof![
        8 => (copy.clone(), size.clone(), now_ms.clone()).prop_map(|(copy, size, now_ms)| Event::Offer { copy, size, now_ms }),
        4 => copy.clone().prop_map(Event::Published),
        2 => copy.clone().prop_map(Event::Dropped),
        2 => (copy, size.clone(), tier.clone()).prop_map(|(copy, size, tier)| Event::Adopt { copy, size, tier }),
        1 => (tier.clone(), spaces(80, 3)).prop_map(|(tier, space)| Event::Expect(tier, space)),
        1 => (tier.clone(), spaces(80, 3)).prop_map(|(tier, space)| Event::Left(tier, space)),
        1 => (tier.clone(), size.clone(), now_ms).prop_map(|(tier, size, now_ms)| Event::Full { tier, size, now_ms }),
        1 => (tier.clone(), spaces(100_000, 20)).prop_map(|(tier, space)| Event::Room(tier, space)),
        1 => tier.clone().prop_map(Event::Off),
        1 => tier.prop_map(Event::On),
    ]
}

/// Copies by tier, kept one by one: their sums must agree with the state.
#[derive(Default)]
struct PlacementModel {
    in_flight: BTreeMap<CopyId, (TierIndex, u64)>,
    published: Vec<(TierIndex, u64)>,
    sizes: BTreeMap<CopyId, u64>,
}

impl PlacementModel {
    fn take(&mut self, event: Event, action: Action) {
        match (event, action) {
            (Event::Offer { size, .. }, Action::Place { copy, tier }) => {
                assert!(self.in_flight.insert(copy, (tier, size)).is_none(), "a copy was placed twice");
                self.sizes.insert(copy, size);
            }
            (Event::Adopt { size, .. }, Action::Place { tier, .. }) => self.published.push((tier, size)),
            (Event::Published(copy), _) => self.published.extend(self.in_flight.remove(&copy)),
            (Event::Dropped(copy), _) => drop(self.in_flight.remove(&copy)),
            _ => {}
        }
    }

    fn sums(&self, tier: TierIndex) -> (u64, u64) {
        let here = self.in_flight.values().chain(&self.published).filter(|(place, _)| *place == tier);
        here.fold((0, 0), |(bytes, inodes), (_, size)| (bytes + size, inodes + 1))
    }
}

const SPECS: [(u64, u64); 3] = [(100, 4), (150, 3), (30_000, 6)];

proptest! {
    #![proptest_config(crate::drawn::cases(600))]

    #[test]
    fn p8_never_over_quota_never_two_places_and_sums_return_to_zero(events in prop::collection::vec(any_event(), 0..120)) {
        let mut state = tiers(&SPECS);
        let mut model = PlacementModel::default();
        for event in events {
            let action = step(&mut state, event);
            model.take(event, action);
            for (index, &(quota_bytes, quota_inodes)) in SPECS.iter().enumerate() {
                let tier = TierIndex(index);
                prop_assert_eq!((state.used_bytes(tier), state.used_inodes(tier)), model.sums(tier));
                prop_assert!(state.used_bytes(tier) <= quota_bytes && state.used_inodes(tier) <= quota_inodes);
            }
            prop_assert_eq!(state.in_flight(), model.in_flight.len());
        }
        for (copy, (tier, _)) in &model.in_flight {
            prop_assert_eq!(state.place_of(*copy), Some(*tier));
            step(&mut state, Event::Dropped(*copy));
        }
        for (tier, size) in &model.published {
            step(&mut state, Event::Removed { tier: *tier, size: *size });
        }
        for index in 0..SPECS.len() {
            prop_assert_eq!((state.used_bytes(TierIndex(index)), state.used_inodes(TierIndex(index))), (0, 0));
        }
    }

    #[test]
    fn what_the_hint_says_is_placed_and_one_byte_more_is_not(events in prop::collection::vec(any_event(), 0..60), now_ms in 0..200_000_u64) {
        let mut state = tiers(&SPECS);
        for event in events {
            step(&mut state, event);
        }
        let hint = state.room_hint(now_ms);
        if hint > 0 {
            prop_assert!(offer(&mut state.clone(), 1_000, hint, now_ms).is_ok());
        }
        prop_assert!(offer(&mut state.clone(), 1_000, hint + 1, now_ms).is_err());
    }

    #[test]
    fn a_refusal_changes_nothing_and_the_top_tier_is_preferred(sizes in prop::collection::vec(0..200_u64, 1..40)) {
        let mut state = tiers(&SPECS[..2]);
        for (copy, size) in sizes.into_iter().enumerate() {
            let free = |state: &FillFirst, tier: usize| {
                state.used_bytes(TierIndex(tier)) + size <= SPECS[tier].0 && state.used_inodes(TierIndex(tier)) < SPECS[tier].1
            };
            let expected = (0..2).find(|&tier| free(&state, tier));
            prop_assert_eq!(offer(&mut state, copy as u64, size, 0).ok(), expected);
        }
    }
}
