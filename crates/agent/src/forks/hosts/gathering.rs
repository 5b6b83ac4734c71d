//! The hosts of one clone: where they meet, and what they pull from each other.
//!
//! Hosts of a clone know each other by notes that each leaves at the first host of the job. The one with rank 0 of the
//! clone leads: it has the states taken, and the others take part in that fork. Each host pulls a part of what it needs
//! from the job's hosts, and the rest from the hosts of the clone that pull that.

use std::{
    net::SocketAddr,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{
    CloneUnderWay, IsOver, OVER, Ticket,
    message::{HostNote, HostRequest},
    sharing::PartServer,
    source_host::{SourceHost, random, rest},
    staging::reason,
};

use crate::forks::{
    client::Forking,
    limits::{HOST_MEET_EVERY, HOST_SILENT_MAX},
    names::ranks_text,
};

/// Milliseconds for which the note of a host counts that has not met the others yet.
const FRESH_MS: u64 = 3000;
/// Duration after which notes that contradict each other are no longer those of an earlier clone with this name.
const CONFLICT_MAX: Duration = Duration::from_millis(2 * FRESH_MS);

/// The hosts of a clone, as one of them sees them.
#[derive(Debug)]
pub(super) struct CloneHosts {
    /// Number of the fork at which they meet.
    meeting: u64,
    note: Mutex<HostNote>,
    /// Notes of other hosts; once the clone's hosts have met, of these only.
    others: Mutex<Vec<HostNote>>,
    /// Numbers of the other hosts of the clone, once they have met.
    met: OnceLock<Vec<u64>>,
    /// Held while a note is on its way, so that an older one does not come after it; and since when the note of a host
    /// that has been met is missing.
    posting: Mutex<Option<Instant>>,
    /// Server of this host's parts.
    pub(super) server: PartServer,
}

impl CloneHosts {
    /// Starts to serve other hosts of the clone, and prepares this host's note for them. `source` is the host of the
    /// job where they meet.
    ///
    /// # Errors
    /// There is no socket, thread or random number.
    pub(super) fn start(ticket: &Ticket, source: SocketAddr, meeting: u64) -> Result<Self, String> {
        let server = PartServer::start(ticket, source)?;
        let note = HostNote {
            host: random()?,
            address: server.address.to_string(),
            ..HostNote::default()
        };
        Ok(Self {
            meeting,
            note: Mutex::new(note),
            others: Mutex::default(),
            met: OnceLock::new(),
            posting: Mutex::default(),
            server,
        })
    }

    /// Waits for all ranks of the clone at all of its hosts. Returns the notes of these hosts, ordered by their ranks,
    /// and this host's place among them. `source` is the host of the job where they meet.
    ///
    /// # Errors
    /// It is over, the meeting host is silent, or these are not the hosts of one clone.
    pub(super) fn meet(
        &self,
        source: &SourceHost,
        clone: &CloneUnderWay<'_>,
        is_over: IsOver<'_>,
    ) -> Result<(Vec<HostNote>, usize), String> {
        let mut contradicts = None;
        let (hosts, here) = loop {
            if is_over() {
                return Err(OVER.into());
            }
            let progress = clone.progress().map_err(reason)?;
            self.post(source, |note| (note.of, note.ranks) = (progress.ranks, progress.arrived))?;
            if let Some(all) = self.all() {
                break all;
            }
            match self.conflict() {
                Some(why) if contradicts.get_or_insert_with(Instant::now).elapsed() > CONFLICT_MAX => return Err(why),
                Some(_) => {}
                None => contradicts = None,
            }
            thread::sleep(HOST_MEET_EVERY);
        };
        self.post(source, |note| note.has_met = true)?;
        while !self.others_have_met() {
            if is_over() {
                return Err(OVER.into());
            }
            thread::sleep(HOST_MEET_EVERY);
            self.post(source, |_| ())?;
        }
        let ranks = hosts[here].ranks.clone();
        clone.with(|forking| forking.gathered(ranks)).map_err(reason)?;
        Ok((hosts, here))
    }

    /// Waits until the ranks at all hosts of the clone have loaded their states, and lets those of this host go on.
    ///
    /// # Errors
    /// It is over, or another host has failed.
    pub(super) fn confirm(&self, source: &SourceHost, clone: &CloneUnderWay<'_>, is_over: IsOver<'_>) -> Result<(), String> {
        let since = Instant::now();
        loop {
            let progress = clone.progress().map_err(reason)?;
            let has_loaded = progress.loaded > 0 && progress.loaded == progress.here;
            self.post(source, |note| note.is_loaded = has_loaded)?;
            if has_loaded && self.others_have_loaded() {
                return clone.with(Forking::confirm).map_err(reason);
            }
            if is_over() {
                return Err(OVER.into());
            }
            rest(since);
        }
    }

    /// Changes this host's note, leaves it at the host where all meet, and reads those of the others.
    ///
    /// # Errors
    /// The meeting host is silent, or another host of the clone is, or has failed.
    pub(super) fn post(&self, source: &SourceHost, change: impl FnOnce(&mut HostNote)) -> Result<(), String> {
        let mut missing_since = self.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let note = {
            let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut note);
            note.clone()
        };
        let fork = self.meeting;
        let host = note.host;
        let others = source.ask(&HostRequest::Post { fork, note })?.board;
        let mut known = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_clone = |other: &HostNote| match self.met.get() {
            Some(met) => met.contains(&other.host),
            // Notes of an earlier clone with this name may still be there.
            None => other.host != host && !other.is_loaded && other.silent_ms < FRESH_MS,
        };
        *known = others.into_iter().filter(is_of_clone).collect();
        if self.met.get().is_none_or(|met| known.len() == met.len()) {
            *missing_since = None;
            // Whoever has seen that all have loaded may go.
            if known.iter().all(|other| other.is_loaded) {
                return Ok(());
            }
        } else if missing_since.get_or_insert_with(Instant::now).elapsed() > HOST_SILENT_MAX {
            // The meeting host forgets notes if it was silent for long. They come again within a second.
            return Err(format!(
                "another host of the clone has said nothing for {} s",
                HOST_SILENT_MAX.as_secs()
            ));
        }
        for other in known.iter() {
            if let Some(why) = &other.failed {
                return Err(format!("at {}, another host of the clone: {why}", other.address));
            }
            if Duration::from_millis(other.silent_ms) > HOST_SILENT_MAX {
                return Err(format!(
                    "{}, another host of the clone, has said nothing for {} s",
                    other.address,
                    HOST_SILENT_MAX.as_secs()
                ));
            }
        }
        Ok(())
    }

    /// Returns the notes of all hosts, ordered by their ranks, and this host's place among them; `None` until all ranks
    /// of the clone are at one of them. From then on only these hosts count.
    fn all(&self) -> Option<(Vec<HostNote>, usize)> {
        let mine = self.note.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (host, of) = (mine.host, mine.of);
        let mut all: Vec<HostNote> = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.push(mine);
        all.retain(|note| !note.ranks.is_empty());
        all.sort_by_key(|note| note.ranks.iter().min().copied());
        let mut ranks: Vec<u32> = all.iter().flat_map(|note| note.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        let here = all.iter().position(|note| note.host == host)?;
        if of == 0 || all.iter().any(|note| note.of != of) || ranks != (0..of).collect::<Vec<_>>() {
            return None;
        }
        let _ = self
            .met
            .set(all.iter().map(|note| note.host).filter(|other| *other != host).collect());
        Some((all, here))
    }

    /// Returns whether all other hosts of the clone have met all, too. Before that none may go on: one that has loaded
    /// its states looks like a host of an earlier clone to those that it has not met.
    fn others_have_met(&self) -> bool {
        self.all_others(|other| other.has_met)
    }

    /// Returns whether something is so for all other hosts that have been met.
    fn all_others(&self, is_so: impl Fn(&HostNote) -> bool) -> bool {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        self.met.get().is_some_and(|met| others.len() == met.len()) && others.iter().all(is_so)
    }

    /// Returns why these hosts can't be those of one clone, as their notes are now.
    fn conflict(&self) -> Option<String> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        let others = || others.iter().filter(|other| !other.ranks.is_empty() && other.of > 0);
        if mine.of > 0
            && let Some(other) = others().find(|other| other.of != mine.of)
        {
            return Some(format!(
                "the clone has {} at this host, and {} at {}: start the same program on all hosts, or name another --group",
                ranks_text(mine.of as usize),
                ranks_text(other.of as usize),
                other.address
            ));
        }
        let twice = |rank: &&u32| others().any(|other| other.ranks.contains(rank));
        let rank = mine.ranks.iter().find(twice)?;
        Some(format!(
            "rank {rank} of the clone is at two hosts: tell its launcher of all of them (torchrun --nnodes), or name another --group"
        ))
    }

    /// Returns the number of the fork that the leading host has had taken, if it has.
    pub(super) fn taken(&self) -> Option<u64> {
        let mine = self.note.lock().unwrap_or_else(PoisonError::into_inner).taken;
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = others.iter().map(|other| other.taken).chain([mine]);
        all.find(|taken| *taken != 0)
    }

    /// Returns whether the ranks at all other hosts have loaded their states.
    fn others_have_loaded(&self) -> bool {
        self.all_others(|other| other.is_loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::TicketHost, *};

    /// One host of a clone, whose ranks have come.
    fn host(number: u64, of: u32, ranks: &[u32]) -> HostNote {
        HostNote {
            host: number,
            address: format!("10.0.0.{number}:7000"),
            of,
            ranks: ranks.to_vec(),
            ..HostNote::default()
        }
    }

    /// The hosts of a clone as the first of `notes` sees them.
    fn seen(notes: &[HostNote]) -> CloneHosts {
        let job = TicketHost {
            host: "127.0.0.1".into(),
            port: 9,
        };
        let ticket = Ticket::new("trunk", job).unwrap();
        let hosts = CloneHosts::start(&ticket, "127.0.0.1:9".parse().unwrap(), 7).unwrap();
        *hosts.note.lock().unwrap() = notes[0].clone();
        *hosts.others.lock().unwrap() = notes[1..].to_vec();
        hosts
    }

    #[test]
    fn hosts_have_met_when_each_rank_is_at_one_of_them() {
        for ranks in [&[][..], &[3], &[1], &[1, 2, 3]] {
            assert_eq!(seen(&[host(9, 4, &[0, 2]), host(5, 4, ranks)]).all(), None, "{ranks:?}");
        }
        let hosts = seen(&[host(9, 4, &[2, 3]), host(5, 4, &[0, 1]), host(6, 0, &[])]);
        let (all, here) = hosts.all().unwrap();
        assert_eq!(all.iter().map(|note| note.host).collect::<Vec<_>>(), [5, 9]);
        assert_eq!((here, hosts.met.get()), (1, Some(&vec![5])));
    }

    #[test]
    fn nobody_goes_on_before_all_have_met() {
        let hosts = seen(&[host(9, 3, &[0]), host(5, 3, &[1]), host(6, 3, &[2])]);
        let say = |number: usize| hosts.others.lock().unwrap()[number].has_met = true;
        say(0);
        say(1);
        assert!(!hosts.others_have_met(), "this host has not met them");
        assert!(hosts.all().is_some());
        assert!(hosts.others_have_met());
        hosts.others.lock().unwrap()[1].has_met = false;
        assert!(!hosts.others_have_met());
        say(1);
        hosts.others.lock().unwrap().pop();
        assert!(!hosts.others_have_met(), "a note is missing");
    }

    #[test]
    fn hosts_that_can_t_be_of_one_clone_say_why() {
        let why = |notes: &[HostNote]| seen(notes).conflict();
        assert_eq!(why(&[host(9, 2, &[0]), host(5, 2, &[1]), host(6, 0, &[])]), None);
        assert_eq!(why(&[host(9, 0, &[]), host(5, 3, &[0])]), None, "no rank has come here");
        assert_eq!(
            why(&[host(9, 1, &[0]), host(5, 2, &[0, 1])]).unwrap(),
            "the clone has 1 rank at this host, and 2 ranks at 10.0.0.5:7000: start the same program on all hosts, or name another --group"
        );
        assert_eq!(
            why(&[host(9, 2, &[0, 1]), host(5, 2, &[1])]).unwrap(),
            "rank 1 of the clone is at two hosts: tell its launcher of all of them (torchrun --nnodes), or name another --group"
        );
    }
}
