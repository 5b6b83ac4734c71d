//! The step of a fork: the hosts of a job are told of one that all of its ranks can still capture.

use std::time::Instant;

use forebay_state::{SectionCache, read_state_unverified};

use super::{
    IsOver, OVER, RemoteJob,
    message::{ForkObject, HostFailure, HostRequest, HostView},
    planning::{CapturedState, CapturedStates, HostShare},
    receiving::{last_step, states_of},
    source_host::{number_at, random, rest},
};

use crate::forks::limits::{HOST_AGREE_LEAD, HOST_AGREE_TRIES};

impl RemoteJob {
    /// Has all hosts capture the states of one step. Returns the number of the fork, and the states.
    pub(super) fn agree(&self, share: &HostShare, is_over: IsOver<'_>) -> Result<(u64, CapturedStates), String> {
        let Some(together) = &self.together else {
            return self.propose(is_over);
        };
        if share.leads() {
            let (number, states) = self.propose(is_over)?;
            together.post(&self.hosts[0], |note| note.taken = number)?;
            return Ok((number, states));
        }
        let since = Instant::now();
        loop {
            if let Some(number) = together.taken() {
                return Ok((number, self.capture(number, is_over)?));
            }
            if is_over() {
                return Err(OVER.into());
            }
            together.post(&self.hosts[0], |_| ())?;
            rest(since);
        }
    }

    /// Names steps to the hosts of the job until all have captured the states of one. Ranks on one host agree by
    /// themselves. Several hosts are given a step that is still to come. If ranks have passed it by the time, a later
    /// one is named, unless the user named the step. Any other failure is the end.
    fn propose(&self, is_over: IsOver<'_>) -> Result<(u64, CapturedStates), String> {
        if self.hosts.len() == 1 && self.together.is_none() {
            return Ok((self.number, self.capture(self.number, is_over)?));
        }
        let mut lead = HOST_AGREE_LEAD;
        let mut tried = 1;
        loop {
            // A host ends the meeting if nobody asks for a while, as during a try: then this begins it again.
            let meeting = self.begin_of(self.number, None, true);
            let views = self.until(&meeting, is_over, |view| !view.states.is_empty())?;
            let step = last_step(&views);
            let steps = step.saturating_sub(self.began.0) as f64 / self.began.1.elapsed().as_secs_f64();
            // The step that is under way may be over at any moment.
            let ahead = (self.hosts.len() > 1).then_some(step + 2 + (steps * lead.as_secs_f64()) as u64);
            let number = self.at.map_or_else(random, |at| Ok(number_at(&self.job, at)))?;
            let begun = self.ask(&self.begin_of(number, self.at.or(ahead), false));
            match begun.and_then(|_| self.capture(number, is_over)) {
                Ok(states) => return Ok((number, states)),
                Err(failure) => {
                    self.end(number);
                    if !failure.is_passed || self.at.is_some() || tried == HOST_AGREE_TRIES || is_over() {
                        return Err(failure.why);
                    }
                }
            }
            lead *= 3;
            tried += 1;
        }
    }

    /// Has the states captured for a fork with this number, and compares their steps.
    fn capture(&self, number: u64, is_over: IsOver<'_>) -> Result<CapturedStates, HostFailure> {
        let is_taken = |view: &HostView| !view.states.is_empty() && view.states.iter().all(|state| state.taken > 0);
        let views = self.until(&HostRequest::Capture { fork: number }, is_over, is_taken)?;
        let texts = self.texts(number, &views, |state| (ForkObject::Taken, state.taken), is_over)?;
        let mut states = CapturedStates::new();
        for ((host, view), text) in states_of(&views).zip(&texts) {
            let (header, manifest) = read_state_unverified(text, &mut SectionCache::default()).map_err(|error| error.to_string())?;
            if header.job != self.job || header.rank != u64::from(view.rank) || manifest.ranks != self.ranks.len() as u64 {
                return Err(format!("{} sends the state of another rank or job", self.hosts[host].name).into());
            }
            let captured = CapturedState {
                host,
                view: *view,
                header,
                manifest,
            };
            states.insert(view.rank, captured);
        }
        if !states.keys().copied().eq(0..self.ranks.len() as u32) {
            return Err("the ranks of the job are not at the hosts any more where they were".into());
        }
        let mut headers = states.values().map(|state| &state.header);
        let first = headers.next().map(|header| (header.epoch, header.step)).unwrap_or_default();
        match headers.find(|header| (header.epoch, header.step) != first) {
            None => Ok(states),
            Some(other) => Err(format!(
                "the ranks were not at one step: rank 0 at step {} of epoch {}, rank {} at step {} of epoch {}; do all take every step together?",
                first.1, first.0, other.rank, other.step, other.epoch
            )
            .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        sync::{Arc, Mutex},
        time::Duration,
    };

    use forebay_peers::{BlobRequest, Found, Holder, Kind, Members, Reply, Server};

    use super::*;
    use crate::forks::hosts::{
        ASKERS, Ticket, TicketHost,
        message::RankView,
        served_object::Text,
        source_host::{SourceHost, ask_each},
    };

    /// A host that has given the meeting up whenever it is looked at, and refuses each fork.
    struct RefusingHost {
        failure: HostFailure,
        /// Steps of the forks that were begun.
        begun: Mutex<Vec<Option<u64>>>,
        ended: Mutex<usize>,
    }

    impl Holder for RefusingHost {
        fn asked(&self, request: BlobRequest, reply: Reply) {
            // A probe has no name.
            let Some(name) = request.name else { return };
            let request = serde_json::from_slice(&name.name).unwrap();
            let refuse = |failure: &HostFailure| HostView {
                refused: Some(failure.clone()),
                ..HostView::default()
            };
            let view = match request {
                HostRequest::Begin { is_meeting: true, .. } => HostView {
                    ranks: 2,
                    step: Some(10),
                    states: vec![RankView::default()],
                    ..HostView::default()
                },
                HostRequest::Begin { at, .. } => {
                    self.begun.lock().unwrap().push(at);
                    HostView::default()
                }
                HostRequest::Capture { fork } if fork != 7 => refuse(&self.failure),
                HostRequest::End { .. } => {
                    *self.ended.lock().unwrap() += 1;
                    HostView::default()
                }
                _ => refuse(&"given up".into()),
            };
            reply.send(Found::Blob(Arc::new(Text(serde_json::to_vec(&view).unwrap()))));
        }
    }

    fn ticket() -> Ticket {
        let host = TicketHost {
            host: "node".into(),
            port: 1,
        };
        Ticket::new("trunk", host).unwrap()
    }

    /// Returns why two such hosts do not agree, and the steps that were named to one of them.
    fn tried(failure: HostFailure, at: Option<u64>) -> (String, Vec<Option<u64>>) {
        let ticket = ticket();
        let refusing = Arc::new(RefusingHost {
            failure,
            begun: Mutex::default(),
            ended: Mutex::default(),
        });
        let mut servers = Vec::new();
        let mut hosts = Vec::new();
        for name in ["a", "b"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let members = Members::of_server(address, ASKERS, 0).unwrap();
            let holder = Arc::clone(&refusing);
            servers.push(Server::start(Kind::Forks, &ticket.secret(), &members, listener, holder).unwrap());
            hosts.push(SourceHost::start(&ticket, name, address).unwrap());
        }
        let job = RemoteJob::of_hosts(&ticket, hosts, at);
        let why = job.propose(&|| false).unwrap_err();
        let begun: Vec<_> = refusing.begun.lock().unwrap().iter().copied().step_by(2).collect();
        assert_eq!(*refusing.ended.lock().unwrap(), 2 * begun.len(), "each try is ended at both hosts");
        (why, begun)
    }

    #[test]
    fn f51_a_later_step_is_named_where_ranks_have_passed_it_though_the_meeting_was_given_up() {
        let passed = HostFailure {
            why: "passed".into(),
            is_passed: true,
        };
        let (why, begun) = tried(passed.clone(), None);
        assert_eq!((why.as_str(), begun.len()), ("passed", HOST_AGREE_TRIES as usize));
        assert!(begun.iter().all(|at| at.is_some_and(|at| at >= 12)), "{begun:?}");
        let (why, begun) = tried(passed, Some(11));
        assert_eq!((why.as_str(), begun), ("passed", vec![Some(11)]), "no other step than the user's");
    }

    #[test]
    fn f54_a_failure_that_a_later_step_does_not_mend_is_the_end() {
        let (why, begun) = tried("no memory".into(), None);
        assert_eq!((why.as_str(), begun.len()), ("no memory", 1));
    }

    #[test]
    fn f51_hosts_that_do_not_answer_cost_one_wait_all_together() {
        let silent: Vec<_> = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let start = |listener: &TcpListener| SourceHost::start(&ticket(), "silent", listener.local_addr().unwrap()).unwrap();
        let hosts: Vec<_> = silent.iter().map(start).collect();
        let since = Instant::now();
        let most = Duration::from_secs(3);
        let views = ask_each(&hosts.iter().collect::<Vec<_>>(), &HostRequest::Look { fork: 1 }, most);
        assert_eq!(views, vec![Ok(None); 6]);
        assert!((most..3 * most).contains(&since.elapsed()), "{:?}", since.elapsed());
    }
}
