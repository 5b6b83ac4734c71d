//! A command's search for the other nodes of its job, with which the agent shares files.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use forebay_contract::CONTRACT_VERSION;
use forebay_peers::{Group, JoinError, Joined, Rank, exchange::Directory, join::JoinOptions, launcher};

use crate::{
    host::{error::AgentError, peer_table::PeerTable},
    tiering::client::TieringConnection,
};

/// Longest time in which all nodes have to begin their runs, to share their files.
const MEET_MAX: Duration = Duration::from_secs(300);
/// Pause between two looks whether the first process of this node has met the other nodes.
const FIRST_LOOK_EVERY: Duration = Duration::from_millis(50);
/// Variables that number the processes of a node from 0 on.
const LOCAL_RANKS: [&str; 6] = [
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "PMIX_LOCAL_RANK",
];

/// Variables with the number of a process in its job, where the launcher numbers processes and not nodes, and those
/// with the number of processes of its node.
const RANKS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];
const LOCAL_SIZES: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];

/// The user's choices for the nodes of a job.
#[derive(Clone, Debug, Default)]
pub struct SharingChoices {
    /// Hosts of all nodes; `None`: those that the launcher says.
    pub hosts: Option<Vec<String>>,
    /// Name of the job, where the launcher gives none.
    pub job: Option<String>,
    /// Name of an interface, an address of one, or a network.
    pub interface: Option<String>,
    /// File with a secret that all nodes have.
    pub secret_file: Option<PathBuf>,
    /// Most nodes of a group that keeps everything once; 0 for one group of all.
    pub group_max: u16,
}

/// The nodes of the job that a command runs in.
#[derive(Debug)]
pub struct JobNodes {
    group: Group,
    options: JoinOptions,
    /// True if this is the process of the node that meets the other nodes.
    is_first_here: bool,
}

impl JobNodes {
    /// Returns the nodes of a job; `None` if there is one node, or neither the launcher nor the user names several.
    ///
    /// # Errors
    /// The launcher contradicts itself: a message for a person.
    pub fn find(variables: &dyn Fn(&str) -> Option<String>, choices: SharingChoices) -> Result<Option<Self>, String> {
        let SharingChoices {
            hosts,
            job,
            interface,
            secret_file,
            group_max,
        } = choices;
        let first_of = |names: &[&str]| names.iter().find_map(|name| variables(name).filter(|value| !value.is_empty()));
        let number = |names: &[&str]| first_of(names).and_then(|value| value.parse().ok());
        let rank = Rank {
            job: job.unwrap_or_else(|| "run".into()),
            rank: number(&RANKS).unwrap_or(0),
            local_ranks: number(&LOCAL_SIZES).unwrap_or(1),
        };
        let is_first_here = first_of(&LOCAL_RANKS).is_none_or(|rank| rank == "0");
        let group = Group::of(variables, hosts.as_deref(), rank, "files").map_err(|error| error.to_string())?;
        Ok(group.map(|group| Self {
            group,
            options: JoinOptions {
                interface,
                secret_file,
                group_max,
                version: CONTRACT_VERSION,
            },
            is_first_here,
        }))
    }

    /// Name of the job.
    pub fn job(&self) -> &str {
        self.group.key()
    }

    /// Finds the other nodes in the background, and has the agent in `agent_dir` share files with them. Nobody waits
    /// for it. Nothing happens in a process that is not the first of its node.
    ///
    /// The nodes meet in `dir`. `say` takes the reason if they do not meet.
    pub fn begin(self, dir: PathBuf, agent_dir: &Path, say: impl Fn(&str) + Send + 'static) -> FileSharing {
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, agent_dir, is_first_here) = (Arc::clone(&is_over), agent_dir.to_owned(), self.is_first_here);
        let meet = move || match self.meet(&dir, &agent_dir, &|| ends.load(Relaxed)) {
            Ok((joined, exchange)) => joined.leave(&exchange, &|| ends.load(Relaxed)),
            Err(_) if ends.load(Relaxed) => {}
            Err(why) => say(&format!("files are not shared with the other nodes: {why}")),
        };
        let meeting = is_first_here.then(|| thread::Builder::new().name("forebay-nodes".into()).spawn(meet));
        FileSharing {
            is_over,
            // Without a thread this node reads for itself.
            meeting: meeting.and_then(Result::ok),
        }
    }

    /// Blocks until all nodes have met in `dir` and the agent in `agent_dir` shares files with them, and returns then.
    /// A process that is not the first of its node waits for what the first one does.
    ///
    /// # Errors
    /// The reason why the nodes did not meet: a message for a person.
    pub fn begin_shared(self, dir: &Path, agent_dir: &Path) -> Result<FileSharing, String> {
        let is_over = Arc::new(AtomicBool::new(false));
        if !self.is_first_here {
            self.await_first(agent_dir)?;
            return Ok(FileSharing { is_over, meeting: None });
        }
        let (joined, exchange) = self.meet(dir, agent_dir, &|| false).map_err(|why| why.to_string())?;
        let ends = Arc::clone(&is_over);
        let leave = move || joined.leave(&exchange, &|| ends.load(Relaxed));
        let meeting = thread::Builder::new().name("forebay-nodes".into()).spawn(leave);
        Ok(FileSharing {
            is_over,
            // Without a thread a later job removes the files by which the nodes met.
            meeting: meeting.ok(),
        })
    }

    /// Waits until the first process of this node has met the other nodes.
    fn await_first(&self, agent_dir: &Path) -> Result<(), String> {
        let begun = Instant::now();
        let mut agent = TieringConnection::open(agent_dir).map_err(|error| error.to_string())?;
        while !agent.is_shared(self.group.key()).map_err(|error| error.to_string())? {
            if begun.elapsed() >= MEET_MAX {
                return Err(format!(
                    "the first process of this node did not meet the other nodes within {} s",
                    MEET_MAX.as_secs()
                ));
            }
            thread::sleep(FIRST_LOOK_EVERY);
        }
        Ok(())
    }

    /// Meets the other nodes, and has the agent share files with them. Returns the place in which the nodes met, too.
    fn meet(&self, dir: &Path, agent_dir: &Path, is_unwanted: &dyn Fn() -> bool) -> Result<(Joined, Directory), MeetError> {
        let exchange = self.group.directory(dir);
        let joined = self.group.join(&exchange, &self.options, MEET_MAX, is_unwanted)?;
        TieringConnection::open(agent_dir)?.share(self.group.key(), &PeerTable::of(&joined), joined.listener.as_fd())?;
        Ok((joined, exchange))
    }
}

/// Returns true if a launcher's variables say how many nodes or ranks the job has, be it one.
pub fn is_launched(variables: &dyn Fn(&str) -> Option<String>) -> bool {
    launcher::detect(variables).is_ok_and(|job| job.is_some())
}

/// Reason why the nodes do not share their files.
#[derive(Debug, thiserror::Error)]
enum MeetError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// A run's search for other nodes. It ends when this is dropped.
#[derive(Debug)]
pub struct FileSharing {
    is_over: Arc<AtomicBool>,
    meeting: Option<JoinHandle<()>>,
}

impl Drop for FileSharing {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(meeting) = self.meeting.take() {
            let _ = meeting.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(more: &[(&str, &str)], choices: SharingChoices) -> Option<JobNodes> {
        let variables = |name: &str| more.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        JobNodes::find(&variables, choices).unwrap()
    }

    #[test]
    fn one_process_of_a_node_meets_the_others() {
        let of = |local: &[(&str, &str)]| {
            let torchrun = [("GROUP_RANK", "1"), ("GROUP_WORLD_SIZE", "2")];
            nodes(&[&torchrun, local].concat(), SharingChoices::default()).unwrap()
        };
        assert!(of(&[]).is_first_here && of(&[("LOCAL_RANK", "0")]).is_first_here);
        assert!(!of(&[("LOCAL_RANK", "1")]).is_first_here);
        assert_eq!(of(&[]).job(), of(&[("LOCAL_RANK", "1")]).job());
    }

    #[test]
    fn a_job_of_one_node_is_told_from_no_job() {
        let of = |nodes: &'static str| {
            move |name: &str| match name {
                "GROUP_RANK" => Some("0".to_owned()),
                "GROUP_WORLD_SIZE" => Some(nodes.to_owned()),
                _ => None,
            }
        };
        assert!(is_launched(&of("1")) && is_launched(&of("2")));
        assert!(!is_launched(&|_| None) && !is_launched(&of("none")));
    }

    #[test]
    fn a_list_of_hosts_needs_no_launcher() {
        assert!(nodes(&[], SharingChoices::default()).is_none());
        let hosts = SharingChoices {
            hosts: Some(vec!["one".into(), "other".into()]),
            ..SharingChoices::default()
        };
        let one = nodes(&[], hosts.clone()).unwrap();
        let another = SharingChoices {
            job: Some("another".into()),
            ..hosts
        };
        assert_ne!(one.job(), nodes(&[], another).unwrap().job());
    }
}
