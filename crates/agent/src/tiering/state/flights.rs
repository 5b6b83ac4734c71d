//! Copies that are being made.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use forebay_contract::Identity;
use forebay_store::SourceStat;

use crate::tiering::{
    handoff::Handoff,
    nodes::{open_waits::WaitingOpener, partial::PartialCopy},
};

/// Place of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyPlace {
    pub(crate) tier: usize,
    pub(crate) copy: u64,
}

/// A copy that is being made, and the names that it will have.
#[derive(Debug)]
pub(crate) struct CopyFlight {
    /// `None` for a file that is read ahead into the page cache alone.
    pub(crate) place: Option<CopyPlace>,
    pub(crate) identity: Identity,
    pub(crate) stat: SourceStat,
    pub(crate) run: u64,
    /// True for a prefetched file that no program has opened yet.
    pub(crate) ahead: bool,
    pub(crate) names: Vec<CopyName>,
    pub(crate) nodes: FlightOfNodes,
}

/// Giver of the bytes of a copy that is being made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CopyGiver {
    /// The source.
    #[default]
    Source,
    /// Another node, most often of this node's group.
    Node,
    /// A node of another group, for all nodes of this one: these wait for the copy.
    OtherGroup,
}

/// Part that other nodes of a job have in a copy.
#[derive(Debug, Default)]
pub(crate) struct FlightOfNodes {
    /// Giver of the copy's bytes.
    pub(crate) giver: CopyGiver,
    /// True for a file that another node reads for all: its copy makes room for those that this one reads.
    pub(crate) is_replica: bool,
    /// True if another node has asked for the file, and no program of this one.
    pub(crate) is_for_others: bool,
    /// Openers that wait for it.
    pub(crate) waiting: Vec<WaitingOpener>,
    /// True once all openers that waited for it have gone on.
    pub(crate) is_late: Arc<AtomicBool>,
    /// Pieces of the copy, which other nodes are sent while it is made.
    pub(crate) partial: Option<Arc<PartialCopy>>,
}

impl FlightOfNodes {
    /// Returns true while the copy comes from another node.
    pub(crate) const fn is_fetched(&self) -> bool {
        !matches!(self.giver, CopyGiver::Source)
    }

    /// Returns true if openers wait until the copy is there.
    pub(crate) const fn is_awaited(&self) -> bool {
        self.is_fetched() || self.is_for_others
    }
}

/// A name that a copy will have.
#[derive(Debug)]
pub(crate) struct CopyName {
    pub(crate) path: Vec<u8>,
    pub(crate) opened_at: u64,
    pub(crate) plain: bool,
}

impl CopyName {
    /// Returns the name by which a program opened the file.
    pub(crate) fn of(handoff: &Handoff) -> Self {
        Self {
            path: handoff.path.clone(),
            opened_at: handoff.opened_at,
            plain: handoff.plain,
        }
    }

    /// Adds the name of a handoff to `names` if it is not among them.
    pub(crate) fn add_to(names: &mut Vec<Self>, handoff: &Handoff) {
        if names.iter().all(|name| name.path != handoff.path) {
            names.push(Self::of(handoff));
        }
    }
}

/// Copies that are being made, by number and by source file.
#[derive(Debug, Default)]
pub(crate) struct CopyFlights {
    by_number: HashMap<u64, CopyFlight>,
    /// Numbers by device and inode of the source file.
    of_file: HashMap<(u64, u64), u64>,
}

impl CopyFlights {
    pub(crate) fn add(&mut self, number: u64, flight: CopyFlight) {
        self.of_file.insert((flight.identity.dev, flight.identity.ino), number);
        self.by_number.insert(number, flight);
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<CopyFlight> {
        let flight = self.by_number.remove(&number)?;
        self.of_file.remove(&(flight.identity.dev, flight.identity.ino));
        Some(flight)
    }

    /// Lets the openers go on that have waited for as long as they may, and has the others wait on. `bytes_per_s`
    /// returns the measured speed of a source, by device.
    pub(crate) fn release_late_openers(&mut self, now: Instant, bytes_per_s: impl Fn(u64) -> Option<u64>) {
        // The program's own reads of these files would share the source. Copies behind a reader do not count: one may
        // last for hours.
        let together = self
            .by_number
            .values()
            .filter(|flight| flight.nodes.is_awaited())
            .map(|flight| flight.identity.size)
            .sum();
        for flight in self.by_number.values_mut() {
            let waiting = &mut flight.nodes.waiting;
            if waiting.is_empty() {
                continue;
            }
            let are_coming = flight.nodes.partial.as_ref().is_some_and(|partial| partial.is_coming());
            let speed = bytes_per_s(flight.identity.dev);
            waiting.retain_mut(|opener| opener.waits_on(now, together, (are_coming, speed)));
            if waiting.is_empty() {
                flight.nodes.is_late.store(true, Relaxed);
            }
        }
    }

    /// Returns the number of the copy that is being made of a file, by device and inode.
    pub(crate) fn number_of(&self, file: (u64, u64)) -> Option<u64> {
        self.of_file.get(&file).copied()
    }

    /// Returns the bytes of the files that are read ahead into the page cache alone.
    pub(crate) fn page_cache_bytes(&self) -> u64 {
        let alone = self.by_number.values().filter(|flight| flight.place.is_none());
        alone.map(|flight| flight.identity.size).sum()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut CopyFlight> {
        self.by_number.get_mut(&number)
    }

    /// Counts the copies that are being made, for one run or for all, and adds the handoffs that wait for theirs.
    pub(crate) fn under_way<'a>(&self, run: Option<u64>, waiting: impl Iterator<Item = &'a Handoff>) -> CopiesUnderWay {
        let flights = self.by_number.values().map(|flight| (flight.run, &flight.stat, flight.ahead));
        let waiting = waiting.map(|handoff| (handoff.run, &handoff.stat, false));
        let mut under_way = CopiesUnderWay::default();
        let is_of_run = |of: u64| run.is_none_or(|run| run == of);
        let mut count = |of: u64, stat: &SourceStat, ahead: bool| {
            if !is_of_run(of) {
                return;
            }
            match (ahead, stat.is_directory()) {
                (true, _) => under_way.ahead += 1,
                (false, true) => under_way.directories += 1,
                (false, false) => under_way.files += 1,
            }
        };
        flights.for_each(|(of, stat, ahead)| count(of, stat, ahead));
        waiting.for_each(|(of, stat, ahead)| count(of, stat, ahead));
        under_way
    }
}

/// Numbers of copies that are being made, and of handoffs that wait for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopiesUnderWay {
    /// Files that programs have opened.
    pub(crate) files: usize,
    /// Directories that programs have listed.
    pub(crate) directories: usize,
    /// Files that no program has opened yet.
    pub(crate) ahead: usize,
}

impl CopiesUnderWay {
    /// Returns the number of copies that programs have asked for.
    pub(crate) const fn following(self) -> usize {
        self.files + self.directories
    }

    pub(crate) const fn is_nothing(self) -> bool {
        self.following() + self.ahead == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(ino: u64, run: u64, ahead: bool) -> CopyFlight {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = forebay_store::SourceFile::new(std::os::fd::OwnedFd::from(file.into_file()));
        let stat = forebay_store::CopySource::stat(&source, forebay_store::StatFrom::Kernel).unwrap();
        CopyFlight {
            place: Some(CopyPlace { tier: 0, copy: ino }),
            identity: Identity {
                dev: 1,
                ino,
                ..stat.identity
            },
            stat,
            run,
            ahead,
            names: Vec::new(),
            nodes: FlightOfNodes::default(),
        }
    }

    #[test]
    fn a_copy_is_found_by_its_file_until_it_has_ended() {
        let mut flights = CopyFlights::default();
        for (number, run, ahead) in [(10, 1, false), (11, 2, false), (12, 2, true)] {
            flights.add(number, flight(number, run, ahead));
        }
        assert_eq!([flights.number_of((1, 11)), flights.number_of((2, 11))], [Some(11), None]);
        let nobody = std::iter::empty;
        let all = flights.under_way(None, nobody());
        assert_eq!((all.files, all.ahead, all.directories), (2, 1, 0));
        assert_eq!(flights.under_way(Some(2), nobody()).following(), 1);
        assert!(flights.under_way(Some(3), nobody()).is_nothing());
        assert_eq!(flights.remove(11).map(|flight| flight.run), Some(2));
        assert!(flights.remove(11).is_none());
        assert_eq!(flights.number_of((1, 11)), None);
    }
}
