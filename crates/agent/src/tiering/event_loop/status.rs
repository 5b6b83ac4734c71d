//! What is counted, for whom, and the room that doors are told of.

use forebay_contract::Run;
use forebay_policy::{Refusal, TierIndex, fill_first};
use forebay_store::Leftovers;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    host::{clock::boot_ms, shared::SharedFile},
    tiering::{
        counts::Counts,
        protocol::{Status, TierStatus, Totals},
    },
};

use super::Clerk;

impl Clerk {
    /// Counts in the totals and, if it is still there, in the run.
    pub(super) fn tally(&mut self, run: u64, count: impl Fn(&mut Status)) {
        count(&mut self.total);
        if let Some(run) = self.runs.get_mut(&run) {
            count(&mut run.tally);
        }
    }

    /// Counts a hand-over that came to nothing.
    pub(super) fn not_copied(&mut self, run: u64, reason: &'static str) {
        self.tally(run, |tally| *tally.not_copied.entry(reason.to_owned()).or_default() += 1);
    }

    /// What was done for a run, or in all, and what of that is under way; tiers are the agent's in either case.
    pub(super) fn status(&self, run: Option<u64>) -> Status {
        let tally = run.and_then(|run| self.runs.get(&run)).map_or(&self.total, |run| &run.tally);
        let under_way = self.under_way(run);
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Status {
            in_flight: under_way.following() as u64,
            listings_in_flight: under_way.listings as u64,
            prefetching: under_way.ahead as u64,
            adopted: self.total.adopted,
            adopting: self.adoption.is_running(),
            runs: self.runs.len() as u64,
            tiers: self
                .tiers
                .iter()
                .enumerate()
                .map(|(number, tier)| TierStatus {
                    dir: tier.setting.dir.clone(),
                    ram: tier.setting.ram,
                    quota_bytes: tier.setting.bytes,
                    used_bytes: self.policy.used_bytes(TierIndex(number)),
                    files: tier.files,
                    listings: tier.listings,
                    off: tier.off.clone(),
                    set_aside: tier.set_aside,
                    replaced_files: tier.replaced.files,
                    replaced_bytes: tier.replaced.bytes,
                    given_back_files: tier.given_back.files,
                    given_back_bytes: tier.given_back.bytes,
                })
                .collect(),
            memory: self.memory.as_ref().map(|watch| watch.seen().into()),
            cpu_ms: cpu.tv_sec as u64 * 1000 + cpu.tv_nsec as u64 / 1_000_000,
            ..tally.clone()
        }
    }

    /// All that was done since the agent started: what doors counted is added up when their run ends, so that no sum goes back then.
    pub(super) fn totals(&self) -> Totals {
        let mut doors = self.doors_of_ended.clone();
        for counts in self.runs.keys().filter_map(|run| self.counted_in(*run)) {
            doors.add(&counts);
        }
        Totals {
            status: self.status(None),
            doors,
        }
    }

    /// What doors have counted in a run; `None` before its command has made the page.
    pub(super) fn counted_in(&self, run: u64) -> Option<Counts> {
        let page = SharedFile::open(&self.config.dir.join(format!("run.{run}"))).ok()?;
        Some(Counts::read(&Run::open(page.region())?, self.tiers.len()))
    }

    /// Tells policy what the file systems of the tiers have left.
    pub(super) fn observe_room(&mut self) {
        for number in 0..self.tiers.len() {
            self.count_leftovers(number);
        }
        for number in 0..self.tiers.len() {
            if !self.is_in_memory(number) {
                self.observe_room_of(number);
            }
        }
        self.watch_memory();
        self.compact_catalogues();
        self.publish_room();
    }

    /// The same of one tier.
    pub(super) fn observe_room_of(&mut self, number: usize) {
        let state = self.tiers.get(number).filter(|state| state.off.is_none());
        if let Some(Ok(room)) = state.map(|state| state.tier.room()) {
            let event = fill_first::Event::Room {
                tier: TierIndex(number),
                bytes: room.bytes.min(self.spare_memory(number)),
                inodes: room.inodes,
            };
            fill_first::step(&mut self.policy, event);
        }
    }

    /// Tells policy what of removed copies still takes room.
    pub(super) fn count_leftovers(&mut self, tier: usize) {
        let Some(state) = self.tiers.get(tier).filter(|state| state.off.is_none()) else {
            return;
        };
        let Leftovers { copies, bytes } = state.tier.retry_leftovers();
        let tier = TierIndex(tier);
        fill_first::step(&mut self.policy, fill_first::Event::Left { tier, bytes, copies });
    }

    /// Tells doors the size of the largest file that is worth a hand-over.
    pub(super) fn publish_room(&self) {
        self.control
            .set_room_hint(self.policy.room_hint(boot_ms()).max(self.room_to_make()));
    }
}

/// Why nothing was copied.
pub(super) const fn refusal_name(reason: Refusal) -> &'static str {
    match reason {
        Refusal::Off => "tier_off",
        Refusal::TooLarge => "larger_than_every_tier",
        Refusal::Quota => "quota_used_up",
        Refusal::Floor => "free_space_floor",
        Refusal::BackingOff => "tier_was_full",
        Refusal::InFlight => "in_flight",
    }
}
