//! Listings of directories: the copies of what programs have listed. They are made by the lister, and go through policy, tier, catalogue and
//! index as copies of files do.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc::Sender},
};

use forebay_contract::FileTime;
use forebay_store::SourceStat;

use crate::{
    host::clock::boot_ms,
    tiering::{
        handoff::Handoff,
        limits::LISTINGS_WAITING_MAX,
        lister::{LARGE_DIRECTORY, ListedDirectory, ListerRequest, ListingWrite, ODD_DIRECTORY},
    },
};

use super::{
    Clerk, TierState,
    flight::{Flight, FlightName},
    publish, status,
};

/// What is being listed.
#[derive(Debug)]
pub(super) struct Listings {
    lister: Sender<ListerRequest>,
    /// By device and inode.
    waiting: HashMap<(u64, u64), Waiting>,
    /// Directories of which there can be no listing, by device and inode: the source is not asked for all of their names in vain again.
    refused: HashMap<(u64, u64), Refused>,
}

/// Why there is no listing of a directory,
#[derive(Debug)]
struct Refused {
    reason: &'static str,
    /// as it was then,
    times: (FileTime, FileTime),
    /// and as long as there is no more room than that.
    bytes: u64,
}

/// A directory that is being listed, and the further names that the listing will have.
#[derive(Debug)]
struct Waiting {
    run: u64,
    times: (FileTime, FileTime),
    more: Vec<FlightName>,
}

impl Listings {
    pub(super) fn new(lister: Sender<ListerRequest>) -> Self {
        Self {
            lister,
            waiting: HashMap::new(),
            refused: HashMap::new(),
        }
    }

    /// Directories that are being listed, in all or for a run.
    pub(super) fn waiting_of(&self, run: Option<u64>) -> usize {
        self.waiting
            .values()
            .filter(|waiting| run.is_none_or(|run| waiting.run == run))
            .count()
    }

    fn ask(&self, request: ListerRequest) {
        // The lister ends with the process.
        let _ = self.lister.send(request);
    }
}

impl TierState {
    /// How many copies of this kind there are.
    pub(super) const fn copies(&mut self, is_listing: bool) -> &mut u64 {
        if is_listing { &mut self.listings } else { &mut self.files }
    }
}

impl Clerk {
    /// A program has opened a file, or listed a directory, at the source.
    pub(super) fn count_handed(&mut self, handed: &Handoff) {
        let is_directory = handed.stat.is_directory();
        self.tally(handed.run, |tally| {
            let number = if is_directory {
                &mut tally.listings_handed_over
            } else {
                &mut tally.handed_over
            };
            *number += 1;
        });
    }

    /// What was handed over has its copy already.
    pub(super) fn confirmed(&mut self, run: u64, stat: &SourceStat) {
        let is_directory = stat.is_directory();
        self.tally(run, |tally| {
            let number = if is_directory {
                &mut tally.listings_confirmed
            } else {
                &mut tally.files_confirmed
            };
            *number += 1;
        });
    }

    /// What was handed over came to nothing.
    pub(super) fn not_kept(&mut self, run: u64, stat: &SourceStat, reason: &'static str) {
        if stat.is_directory() {
            self.not_listed(run, reason);
        } else {
            self.not_copied(run, reason);
        }
    }

    fn not_listed(&mut self, run: u64, reason: &'static str) {
        self.tally(run, |tally| *tally.listings_not_kept.entry(reason.to_owned()).or_default() += 1);
    }

    fn refuse(&mut self, directory: (u64, u64), reason: &'static str, times: (FileTime, FileTime), bytes: u64) {
        if self.listings.refused.len() >= LISTINGS_WAITING_MAX {
            self.listings.refused.clear();
        }
        self.listings.refused.insert(directory, Refused { reason, times, bytes });
    }

    /// Has a directory listed of which nothing is known, or adds a name to its listing that is being made.
    pub(super) fn list(&mut self, handed: Handoff) {
        let identity = handed.stat.identity;
        let directory = (identity.dev, identity.ino);
        let flight = self.flight_of_file.get(&directory).and_then(|number| self.flights.get_mut(number));
        let names = match flight {
            Some(flight) => Some(&mut flight.names),
            None => self.listings.waiting.get_mut(&directory).map(|waiting| &mut waiting.more),
        };
        if let Some(names) = names {
            return FlightName::add_to(names, &handed);
        }
        if !self.mounts.of(identity.dev).has_directory_times() {
            return self.not_listed(handed.run, "no_directory_times");
        }
        if self.index_has_no_room() {
            return self.not_listed(handed.run, publish::INDEX_FULL);
        }
        if self.listings.waiting.len() >= LISTINGS_WAITING_MAX {
            return self.not_listed(handed.run, "too_many_directories");
        }
        let times = (identity.mtime, identity.ctime);
        let room = self.policy.room_hint(boot_ms()).max(self.room_to_make());
        if let Some(refused) = self.listings.refused.get(&directory)
            && refused.times == times
            && refused.bytes > room
        {
            let reason = refused.reason;
            return self.not_listed(handed.run, reason);
        }
        let waiting = Waiting {
            run: handed.run,
            times,
            more: Vec::new(),
        };
        self.listings.waiting.insert(directory, waiting);
        self.listings.ask(ListerRequest::List(Box::new(handed)));
    }

    /// A directory was listed: its listing is written to a tier that has room for it.
    pub(super) fn listed(&mut self, listed: ListedDirectory) {
        let ListedDirectory { directory, run, listing } = listed;
        let Some(Waiting { mut more, times, .. }) = self.listings.waiting.remove(&directory) else {
            return;
        };
        let listing = match listing {
            Ok(listing) => listing,
            Err(reason) => {
                if matches!(reason, ODD_DIRECTORY | LARGE_DIRECTORY) {
                    self.refuse(directory, reason, times, u64::MAX);
                }
                return self.not_listed(run, reason);
            }
        };
        let (stat, name) = (listing.handed.stat, FlightName::of(&listing.handed));
        let identity = stat.identity;
        if let Err(reason) = self.is_settled(&listing.handed) {
            return self.not_listed(run, reason);
        }
        // One of an earlier run, adopted meanwhile under another name.
        if self.names.of_file(&self.pages.index(), identity.dev, identity.ino).is_some() {
            return self.not_listed(run, "changed_meanwhile");
        }
        let (number, tier) = match self.place(identity.size) {
            Ok(placed) => placed,
            Err(reason) => {
                let reason = status::refusal_name(reason);
                self.refuse(directory, reason, times, identity.size);
                return self.not_listed(run, reason);
            }
        };
        let Some(state) = self.tiers.get(tier) else { return };
        let write = ListingWrite {
            number,
            copy: state.tier.next_id(),
            tier: Arc::clone(&state.tier),
            listing,
        };
        more.retain(|other| other.path != name.path);
        more.insert(0, name);
        let flight = Flight {
            copy: write.copy,
            identity,
            stat,
            tier,
            run,
            ahead: false,
            names: more,
        };
        self.flights.insert(number, flight);
        self.flight_of_file.insert(directory, number);
        self.listings.ask(ListerRequest::Write(write));
        self.publish_room();
    }
}
