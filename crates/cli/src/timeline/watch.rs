//! Looks at a run while its program runs.

use std::{
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use forebay_agent::{Connection, Counts, JoinedRun};
use forebay_contract::Run;

use super::{Files, Moment, PAUSE_MIN, Timeline};

/// An agent that has not answered by then is not asked again for this look.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// So many failures, and the agent is not asked any more: the socket of one that is stopped takes a limited number of connections, and the
/// next one would wait.
const FAILURES_MAX: u32 = 3;

/// Does something, and looks meanwhile, from `started` on. Without a thread to look there is no course, and no harm.
pub fn watch<T>(joined: &JoinedRun, tiers: usize, started: Instant, during: impl FnOnce() -> T) -> (T, Timeline) {
    let mut watcher = Watcher {
        page: joined.page(),
        started,
        tiers: Tiers {
            agent_dir: joined.agent_dir(),
            connection: None,
            failures: 0,
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
    tiers: Tiers<'a>,
    counts: Vec<u32>,
}

impl Watcher<'_> {
    fn look_until(&mut self, ended: &Receiver<()>) -> Timeline {
        let mut timeline = Timeline::default();
        let mut pause = PAUSE_MIN;
        loop {
            if timeline.push(self.look()) {
                pause *= 2;
            }
            if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                timeline.moments.push(self.look());
                return timeline;
            }
        }
    }

    fn look(&mut self) -> Moment {
        let used_bytes = self.tiers.look();
        let counts = Counts::read(&self.page, used_bytes.len());
        let files = Files::read(&self.page, &mut self.counts);
        Moment::of(self.started.elapsed().as_secs_f64(), &counts, &files, used_bytes)
    }
}

/// How full the tiers are, as the agent says: asked on a connection of its own, since an answer that comes late must not be taken for that to
/// the run's next question.
struct Tiers<'a> {
    agent_dir: &'a Path,
    connection: Option<Connection>,
    failures: u32,
    used_bytes: Vec<u64>,
}

impl Tiers<'_> {
    /// Bytes by tier; where the agent does not answer, what it said last.
    fn look(&mut self) -> &[u64] {
        if self.failures < FAILURES_MAX && self.ask().is_none() {
            self.connection = None;
            self.failures += 1;
        }
        &self.used_bytes
    }

    fn ask(&mut self) -> Option<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(Connection::open_for(self.agent_dir, ANSWER_MAX).ok()?),
        };
        let status = connection.status().ok()?;
        for (used, tier) in self.used_bytes.iter_mut().zip(status.tiers) {
            *used = tier.used_bytes;
        }
        Some(())
    }
}
