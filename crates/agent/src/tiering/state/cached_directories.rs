//! Cached directories: copies of the names in directories that programs have listed. The lister makes them; they go
//! through policy, tier, catalogue and index like copies of files.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc::Sender},
};

use forebay_contract::{FileTime, NotCached};

use crate::tiering::{
    handoff::Handoff,
    limits::LISTINGS_WAITING_MAX,
    lister::{DirectoryListing, ListedDirectory, ListerRequest, ListingWrite},
    state::{
        copies::PublishedCopies,
        flights::{CopyFlight, CopyFlights, CopyName, CopyPlace, FlightOfNodes},
        source_files::SourceFiles,
        tier_set::reason_of,
    },
};

/// Directories that are being listed, and directories that can't be cached.
#[derive(Debug)]
pub(crate) struct CachedDirectories {
    lister: Sender<ListerRequest>,
    /// Directories that are being listed, by device and inode.
    waiting: HashMap<(u64, u64), WaitingDirectory>,
    /// Directories that can't be cached, by device and inode. The source is not asked again for all names of such a
    /// directory.
    refused: HashMap<(u64, u64), RefusedDirectory>,
}

/// A directory that can't be cached while its times are `times` and no more than `bytes` of room are there.
#[derive(Debug)]
struct RefusedDirectory {
    reason: NotCached,
    times: (FileTime, FileTime),
    bytes: u64,
}

/// A directory that is being listed, and the further names that its copy will have.
#[derive(Debug)]
struct WaitingDirectory {
    run: u64,
    times: (FileTime, FileTime),
    more: Vec<CopyName>,
}

/// A listing that is written to a tier.
pub(crate) struct PlacedListing {
    pub(crate) number: u64,
    pub(crate) flight: CopyFlight,
}

impl CachedDirectories {
    pub(crate) fn new(lister: Sender<ListerRequest>) -> Self {
        Self {
            lister,
            waiting: HashMap::new(),
            refused: HashMap::new(),
        }
    }

    /// Counts the directories that are being listed, for one run or for all.
    pub(crate) fn waiting_of(&self, run: Option<u64>) -> usize {
        self.waiting
            .values()
            .filter(|waiting| run.is_none_or(|run| waiting.run == run))
            .count()
    }

    fn request(&self, request: ListerRequest) {
        // The lister ends with the process.
        let _ = self.lister.send(request);
    }

    fn refuse(&mut self, directory: (u64, u64), reason: NotCached, times: (FileTime, FileTime), bytes: u64) {
        if self.refused.len() >= LISTINGS_WAITING_MAX {
            self.refused.clear();
        }
        self.refused.insert(directory, RefusedDirectory { reason, times, bytes });
    }

    /// Requests the listing of a directory, or adds a name to its copy that is being made.
    ///
    /// # Errors
    /// The reason to count.
    pub(crate) fn list(
        &mut self,
        handoff: Handoff,
        flights: &mut CopyFlights,
        sources: &SourceFiles,
        copies: &PublishedCopies,
    ) -> Result<(), NotCached> {
        let identity = handoff.stat.identity;
        let directory = (identity.dev, identity.ino);
        let flight = flights.number_of(directory).and_then(|number| flights.get_mut(number));
        let names = match flight {
            Some(flight) => Some(&mut flight.names),
            None => self.waiting.get_mut(&directory).map(|waiting| &mut waiting.more),
        };
        if let Some(names) = names {
            CopyName::add_to(names, &handoff);
            return Ok(());
        }
        if !sources.mounts().of(identity.dev).has_directory_times() {
            return Err(NotCached::NoDirectoryTimes);
        }
        if copies.index.is_full() {
            return Err(NotCached::IndexFull);
        }
        if self.waiting.len() >= LISTINGS_WAITING_MAX {
            return Err(NotCached::TooManyDirectories);
        }
        let times = (identity.mtime, identity.ctime);
        self.check_refused(directory, times, copies.tiers.room_or_replaceable())?;
        let waiting = WaitingDirectory {
            run: handoff.run,
            times,
            more: Vec::new(),
        };
        self.waiting.insert(directory, waiting);
        self.request(ListerRequest::List(Box::new(handoff)));
        Ok(())
    }

    fn check_refused(&self, directory: (u64, u64), times: (FileTime, FileTime), room: u64) -> Result<(), NotCached> {
        match self.refused.get(&directory) {
            Some(refused) if refused.times == times && refused.bytes > room => Err(refused.reason),
            _ => Ok(()),
        }
    }

    /// Takes the listing of a directory and has it written to a tier with room for it; `None` if the directory was not
    /// waiting.
    ///
    /// # Errors
    /// The reason to count.
    pub(crate) fn listed(
        &mut self,
        listed: ListedDirectory,
        sources: &SourceFiles,
        copies: &mut PublishedCopies,
    ) -> Result<Option<PlacedListing>, NotCached> {
        let ListedDirectory { directory, listing, .. } = listed;
        let Some(waiting) = self.waiting.remove(&directory) else {
            return Ok(None);
        };
        match listing {
            Ok(listing) => self.write(listing, waiting, sources, copies).map(Some),
            Err(reason) => {
                // However often it is listed, its positions lead nowhere, or it has too many names.
                if matches!(reason, NotCached::OddDirectory | NotCached::LargeDirectory) {
                    self.refuse(directory, reason, waiting.times, u64::MAX);
                }
                Err(reason)
            }
        }
    }

    fn write(
        &mut self,
        listing: Box<DirectoryListing>,
        waiting: WaitingDirectory,
        sources: &SourceFiles,
        copies: &mut PublishedCopies,
    ) -> Result<PlacedListing, NotCached> {
        let WaitingDirectory { run, times, more } = waiting;
        let (stat, name) = (listing.handoff.stat, CopyName::of(&listing.handoff));
        let identity = stat.identity;
        sources.check_unchanged(&listing.handoff, &copies.index)?;
        // A copy of an earlier run was recovered meanwhile, under another name.
        if copies.index.of_file(identity.dev, identity.ino).is_some() {
            return Err(NotCached::ChangedMeanwhile);
        }
        let (number, tier) = copies.place(identity.size).map_err(|reason| {
            let reason = reason_of(reason);
            self.refuse((identity.dev, identity.ino), reason, times, identity.size);
            reason
        })?;
        let state = copies.tiers.get(tier).ok_or(NotCached::TierOff)?;
        let write = ListingWrite {
            number,
            copy: state.tier.next_id(),
            tier: Arc::clone(&state.tier),
            listing,
        };
        let mut names = more;
        names.retain(|other| other.path != name.path);
        names.insert(0, name);
        let flight = CopyFlight {
            place: Some(CopyPlace { tier, copy: write.copy }),
            identity,
            stat,
            run,
            ahead: false,
            nodes: FlightOfNodes::default(),
            names,
        };
        self.request(ListerRequest::Write(write));
        copies.tiers.publish_room();
        Ok(PlacedListing { number, flight })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_refused_directory_is_listed_again_once_it_has_changed_or_there_is_more_room() {
        let mut directories = CachedDirectories::new(channel().0);
        let at = |sec| (FileTime { sec, nsec: 0 }, FileTime { sec, nsec: 0 });
        directories.refuse((1, 2), NotCached::QuotaUsedUp, at(5), 100);
        assert_eq!(directories.check_refused((1, 2), at(5), 99), Err(NotCached::QuotaUsedUp));
        assert_eq!(directories.check_refused((1, 2), at(5), 100), Ok(()));
        assert_eq!(directories.check_refused((1, 2), at(6), 99), Ok(()));
        assert_eq!(directories.check_refused((1, 3), at(5), 99), Ok(()));
        for inode in 0..=LISTINGS_WAITING_MAX as u64 {
            directories.refuse((7, inode), NotCached::LargeDirectory, at(1), u64::MAX);
        }
        assert!(directories.refused.len() <= LISTINGS_WAITING_MAX, "bounded");
    }
}
