//! Looks at a run while its program runs.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use forebay_agent::{
    host::clock::boot_ns,
    tiering::{
        Counts, JoinedRun, TieringConnection,
        protocol::{ControlRequest, ControlResponse},
    },
};
use forebay_contract::Run;

use crate::run::first_step::end_startup;

use super::{Files, Moment, PAUSE_MIN, Timeline};

/// Longest wait of a look for the agent's answer; a later answer belongs to the next look. The end of a run waits no
/// longer either.
const ANSWER_MAX: Duration = Duration::from_millis(100);

/// Does something, and looks meanwhile, from `started` on. Without a thread to look there is no course, and no harm.
pub fn watch<T>(joined: &JoinedRun, tiers: usize, started: Instant, during: impl FnOnce() -> T) -> (T, Timeline) {
    let mut watcher = Watcher {
        page: joined.page(),
        started,
        begun_ns: boot_ns(),
        tiers: Tiers {
            connection: TieringConnection::open_for(joined.agent_dir(), ANSWER_MAX).ok(),
            is_asked: false,
            used_bytes: vec![0; tiers],
        },
        counts: Vec::new(),
    };
    thread::scope(|scope| {
        let (end, ended) = channel();
        let looking = thread::Builder::new()
            .name("timeline".into())
            .spawn_scoped(scope, move || watcher.look_until(&ended));
        let done = during();
        drop::<std::sync::mpsc::Sender<()>>(end);
        let timeline = looking.ok().and_then(|looking| looking.join().ok());
        (done, timeline.unwrap_or_default())
    })
}

struct Watcher<'a> {
    page: Run<'a>,
    started: Instant,
    /// Start in nanoseconds of boot time.
    begun_ns: u64,
    tiers: Tiers,
    counts: Vec<u32>,
}

impl Watcher<'_> {
    fn look_until(&mut self, ended: &Receiver<()>) -> Timeline {
        let mut timeline = Timeline::default();
        let mut pause = PAUSE_MIN;
        loop {
            self.tiers.look();
            end_startup(&self.page.startup(), self.begun_ns, boot_ns());
            if timeline.push(self.moment()) {
                pause *= 2;
            }
            if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                // The agent is asked once more when the run leaves it.
                timeline.moments.push(self.moment());
                return timeline;
            }
        }
    }

    fn moment(&mut self) -> Moment {
        let used_bytes = &self.tiers.used_bytes;
        let counts = Counts::read(&self.page, used_bytes.len());
        let files = Files::read(&self.page, &mut self.counts);
        Moment::of(self.started.elapsed().as_secs_f64(), &counts, &files, used_bytes)
    }
}

/// Bytes in the tiers, as the agent reports them. The connection is a separate one: a late answer must not be taken
/// for the answer to the run's next request.
struct Tiers {
    /// `None` once it has failed.
    connection: Option<TieringConnection>,
    /// The answer to the last question has not come yet.
    is_asked: bool,
    /// Bytes by tier; the previous ones while the agent does not answer.
    used_bytes: Vec<u64>,
}

impl Tiers {
    /// Asks, unless an answer is still to come, and takes it if it comes soon. An agent with which something is wrong
    /// is not asked again.
    fn look(&mut self) {
        if self.ask().is_none() {
            self.connection = None;
        }
    }

    fn ask(&mut self) -> Option<()> {
        let connection = self.connection.as_mut()?;
        if !self.is_asked {
            connection.send(&ControlRequest::Status).ok()?;
            self.is_asked = true;
        }
        if let Some(reply) = connection.receive().ok()? {
            self.is_asked = false;
            let ControlResponse::Status(status) = reply else { return None };
            for (used, tier) in self.used_bytes.iter_mut().zip(status.tiers) {
                *used = tier.used_bytes;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        os::fd::OwnedFd,
        path::Path,
    };

    use forebay_agent::tiering::protocol::{Status, TierStatus};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with};

    use super::*;

    fn listening(path: &Path) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, 1).unwrap();
        socket
    }

    #[test]
    fn an_agent_is_asked_once_and_a_late_answer_serves_the_next_look() {
        let dir = tempfile::tempdir().unwrap();
        let listener = listening(&dir.path().join("control.sock"));
        let mut tiers = Tiers {
            connection: TieringConnection::open_for(dir.path(), Duration::from_millis(10)).ok(),
            is_asked: false,
            used_bytes: vec![1],
        };
        let mut agent = File::from(accept(&listener).unwrap());
        for _ in 0..3 {
            tiers.look();
        }
        assert_eq!(tiers.used_bytes, [1]);
        let response = ControlResponse::Status(Status {
            tiers: vec![TierStatus {
                used_bytes: 7,
                ..TierStatus::default()
            }],
            ..Status::default()
        });
        agent.write_all(&serde_json::to_vec(&response).unwrap()).unwrap();
        tiers.look();
        assert_eq!(tiers.used_bytes, [7]);
        tiers.look();
        let mut packet = [0; 64];
        let questions = (0..2).filter(|_| agent.read(&mut packet).unwrap() > 0).count();
        assert_eq!(questions, 2, "one question for each answer");
        drop(agent);
        tiers.look();
        assert!(tiers.connection.is_none(), "it has ended");
        tiers.look();
    }
}
