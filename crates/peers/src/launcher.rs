//! The nodes of a job by its launcher's variables: their number, the number of this one, and the address of the
//! first.
//!
//! | launcher | place of this node | job | first node |
//! | --- | --- | --- | --- |
//! | torchrun | `GROUP_RANK`, `GROUP_WORLD_SIZE` | `TORCHELASTIC_RUN_ID`, restart | `MASTER_ADDR` |
//! | Slurm | `SLURM_NODEID`, `SLURM_STEP_NUM_NODES` | `SLURM_JOB_ID`, step | first of `SLURM_STEP_NODELIST` |
//! | Ray Train | `NODE_RANK`, ranks / ranks of a node | `MASTER_ADDR`, port | `MASTER_ADDR` |
//! | Kubernetes | `PET_NODE_RANK` or `JOB_COMPLETION_INDEX`, `PET_NNODES` | `MASTER_ADDR` | `MASTER_ADDR` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | `PMIX_NAMESPACE` | that of rank 0 |
//! | MPICH | `PMI_RANK`, `PMI_SIZE` | `PMI_JOBID` | that of rank 0 |
//!
//! Open MPI and MPICH number ranks, not nodes: the first rank of each node announces how many ranks the node has.
//!
//! Pure: variables come in as a function.

use std::fmt;

/// A job's launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, or another agent of torch's elastic launcher.
    Torchrun,
    /// `srun`.
    Slurm,
    /// Ray Train.
    Ray,
    /// A Kubernetes operator for training jobs, or an indexed job.
    Kubernetes,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec`, or that of its kin.
    Mpich,
}

impl fmt::Display for Launcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm",
            Self::Ray => "Ray Train",
            Self::Kubernetes => "Kubernetes",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        })
    }
}

/// Place of this node in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// Nodes have numbers.
    Nodes {
        /// Number of this node.
        node: u16,
        /// Number of nodes.
        nodes: u16,
    },
    /// Only ranks have numbers. The nodes are complete once their ranks are.
    Ranks {
        /// Smallest rank of this node.
        rank: u32,
        /// Number of ranks of the job.
        ranks: u32,
    },
}

impl Numbering {
    /// Number of this node, or of its smallest rank.
    pub const fn number(self) -> u32 {
        match self {
            Self::Nodes { node, .. } => node as u32,
            Self::Ranks { rank, .. } => rank,
        }
    }

    /// Number of nodes, or of ranks.
    pub const fn count(self) -> u32 {
        match self {
            Self::Nodes { nodes, .. } => nodes as u32,
            Self::Ranks { ranks, .. } => ranks,
        }
    }

    /// Nodes or ranks, as a word.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Nodes { .. } => "nodes",
            Self::Ranks { .. } => "ranks",
        }
    }

    /// Returns true for the node that rank 0 is on.
    pub const fn is_first(self) -> bool {
        self.number() == 0
    }
}

/// A job, by its launcher's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The launcher.
    pub launcher: Launcher,
    /// A name of the job that no other job has: letters, digits, dots, dashes and underscores.
    pub key: String,
    /// Place of this node.
    pub numbering: Numbering,
    /// Host and port at which the launcher's first node can be reached; the port is 0 where it is not known.
    pub first: Option<(String, u16)>,
}

/// A launcher that contradicts itself.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{launcher} says {variable}={value}: {problem}; set FOREBAY_PEERS=off")]
pub struct LauncherError {
    launcher: Launcher,
    variable: String,
    value: String,
    problem: &'static str,
}

/// Variables of an environment, as one launcher is asked.
struct Variables<'a> {
    launcher: Launcher,
    of: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.of)(name).filter(|value| !value.is_empty())
    }

    fn error(&self, name: &str, problem: &'static str) -> LauncherError {
        LauncherError {
            launcher: self.launcher,
            variable: name.to_owned(),
            value: self.text(name).unwrap_or_default(),
            problem,
        }
    }

    fn number(&self, name: &str) -> Result<Option<u16>, LauncherError> {
        let parsed = self
            .text(name)
            .map(|value| value.parse().map_err(|_| self.error(name, "expected a number from 0 to 65535")));
        parsed.transpose()
    }

    fn rank(&self, name: &str) -> Result<Option<u32>, LauncherError> {
        let parsed = self
            .text(name)
            .map(|value| value.parse().map_err(|_| self.error(name, "expected a number")));
        parsed.transpose()
    }

    /// Returns this node and the number of nodes, once both make sense together.
    fn node_of(&self, node: &str, nodes: &str) -> Result<Option<Numbering>, LauncherError> {
        let (Some(number), Some(count)) = (self.number(node)?, self.number(nodes)?) else {
            return Ok(None);
        };
        if number >= count {
            return Err(self.error(node, "there are not so many nodes"));
        }
        Ok(Some(Numbering::Nodes {
            node: number,
            nodes: count,
        }))
    }

    /// Returns a job whose launcher numbers ranks.
    fn of_ranks(&self, rank: &str, ranks: &str, jobs: &[&str], problem: &'static str) -> Result<Option<Job>, LauncherError> {
        let (Some(number), Some(count)) = (self.rank(rank)?, self.rank(ranks)?) else {
            return Ok(None);
        };
        if number >= count {
            return Err(self.error(rank, "there are not so many ranks"));
        }
        let job = jobs.iter().find_map(|name| self.text(name));
        let job = job.ok_or_else(|| self.error(jobs[0], problem))?;
        Ok(Some(Job {
            launcher: self.launcher,
            key: key(&["mpi", &job]),
            numbering: Numbering::Ranks {
                rank: number,
                ranks: count,
            },
            first: None,
        }))
    }

    fn first(&self) -> Result<Option<(String, u16)>, LauncherError> {
        let port = self.number("MASTER_PORT")?.unwrap_or(0);
        Ok(self.text("MASTER_ADDR").map(|host| (host, port)))
    }
}

/// Returns the job, or `None` if no launcher says anything of nodes.
///
/// # Errors
/// [`LauncherError`]: its variables contradict each other.
pub fn detect(of: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, LauncherError> {
    // Open MPI and MPICH start their own programs by Slurm, whose variables then number those.
    for ask in [torchrun, kubernetes, ray, open_mpi, mpich, slurm] {
        if let Some(job) = ask(of)? {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

fn torchrun(of: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, LauncherError> {
    let variables = Variables {
        launcher: Launcher::Torchrun,
        of,
    };
    let Some(numbering) = variables.node_of("GROUP_RANK", "GROUP_WORLD_SIZE")? else {
        return Ok(None);
    };
    let run = variables.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let restart = variables.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    let first = variables.first()?;
    // Without `--rdzv-id` all runs have the same one, and ports are alike on all hosts.
    let (host, port) = first.clone().unwrap_or_default();
    Ok(Some(Job {
        launcher: Launcher::Torchrun,
        key: key(&["torchrun", &run, &restart, &host, &port.to_string()]),
        numbering,
        first,
    }))
}

fn kubernetes(of: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, LauncherError> {
    let variables = Variables {
        launcher: Launcher::Kubernetes,
        of,
    };
    if variables.text("KUBERNETES_SERVICE_HOST").is_none() {
        return Ok(None);
    }
    let numbering = match variables.node_of("PET_NODE_RANK", "PET_NNODES")? {
        None => variables.node_of("JOB_COMPLETION_INDEX", "PET_NNODES")?,
        found => found,
    };
    let Some(numbering) = numbering else { return Ok(None) };
    let first = variables.first()?;
    let host = first.as_ref().map_or("", |(host, _)| host.as_str());
    Ok(Some(Job {
        launcher: Launcher::Kubernetes,
        key: key(&["kubernetes", host]),
        numbering,
        first,
    }))
}

fn ray(of: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, LauncherError> {
    let variables = Variables {
        launcher: Launcher::Ray,
        of,
    };
    let (Some(node), Some(ranks), Some(here)) = (
        variables.number("NODE_RANK")?,
        variables.number("WORLD_SIZE")?,
        variables.number("LOCAL_WORLD_SIZE")?,
    ) else {
        return Ok(None);
    };
    if here == 0 || !ranks.is_multiple_of(here) {
        return Err(variables.error("LOCAL_WORLD_SIZE", "nodes with different numbers of ranks are not supported"));
    }
    let nodes = ranks / here;
    if node >= nodes {
        return Err(variables.error("NODE_RANK", "there are not so many nodes"));
    }
    let first = variables.first()?;
    let (host, port) = first.clone().unwrap_or_default();
    Ok(Some(Job {
        launcher: Launcher::Ray,
        key: key(&["ray", &host, &port.to_string()]),
        numbering: Numbering::Nodes { node, nodes },
        first,
    }))
}

fn slurm(of: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, LauncherError> {
    let variables = Variables {
        launcher: Launcher::Slurm,
        of,
    };
    // A batch script has the job's variables, too, and runs once: only a step has this one.
    let Some(numbering) = variables.node_of("SLURM_NODEID", "SLURM_STEP_NUM_NODES")? else {
        return Ok(None);
    };
    let job = variables.text("SLURM_JOB_ID").unwrap_or_default();
    let step = variables.text("SLURM_STEP_ID").unwrap_or_default();
    let hosts = variables
        .text("SLURM_STEP_NODELIST")
        .or_else(|| variables.text("SLURM_JOB_NODELIST"));
    let first = match hosts {
        None => None,
        Some(hosts) => {
            let hosts =
                expand(&hosts, numbering.count() as usize).ok_or_else(|| variables.error("SLURM_STEP_NODELIST", "it could not be read"))?;
            hosts.into_iter().next().map(|host| (host, 0))
        }
    };
    Ok(Some(Job {
        launcher: Launcher::Slurm,
        key: key(&["slurm", &job, &step]),
        numbering,
        first,
    }))
}

fn open_mpi(of: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, LauncherError> {
    let variables = Variables {
        launcher: Launcher::OpenMpi,
        of,
    };
    let jobs = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];
    variables.of_ranks("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &jobs, "the job has no name")
}

fn mpich(of: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, LauncherError> {
    let variables = Variables {
        launcher: Launcher::Mpich,
        of,
    };
    // Slurm sets the others, too, and numbers nodes.
    if variables.text("MPI_LOCALRANKID").is_none() {
        return Ok(None);
    }
    let problem = "the job has no name; call mpiexec with -genv PMI_JOBID NAME";
    variables.of_ranks("PMI_RANK", "PMI_SIZE", &["PMI_JOBID"], problem)
}

/// Joins parts into a name that can be a file's.
fn key(parts: &[&str]) -> String {
    plain(&parts.join("-"))
}

/// Returns a name as it can be a file's: other characters become underscores.
pub(crate) fn plain(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') {
            c
        } else {
            '_'
        }
    };
    name.chars().map(plain).take(100).collect()
}

/// Expands Slurm's list of hosts, such as `gpu[01-03,07],login1`: the names in their order, at most `most`. `None` if
/// the list is invalid.
pub fn expand(list: &str, most: usize) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let mut rest = list;
    while !rest.is_empty() && hosts.len() < most {
        // A comma within brackets separates numbers.
        let end = rest
            .char_indices()
            .scan(0i32, |depth, (at, c)| {
                *depth += i32::from(c == '[') - i32::from(c == ']');
                Some((at, c, *depth))
            })
            .find(|(_, c, depth)| *c == ',' && *depth == 0)
            .map_or(rest.len(), |(at, ..)| at);
        let (part, after) = rest.split_at(end);
        rest = after.strip_prefix(',').unwrap_or(after);
        expand_part(part, most, &mut hosts)?;
    }
    (!hosts.is_empty()).then_some(hosts)
}

fn expand_part(part: &str, most: usize, hosts: &mut Vec<String>) -> Option<()> {
    let Some((prefix, rest)) = part.split_once('[') else {
        if part.is_empty() || part.contains(']') {
            return None;
        }
        hosts.push(part.to_owned());
        return Some(());
    };
    let (numbers, suffix) = rest.split_once(']')?;
    // Several brackets in one name occur on machines with several racks.
    if suffix.contains('[') {
        for number in expand_numbers(numbers, most)? {
            expand_part(&format!("{prefix}{number}{suffix}"), most, hosts)?;
        }
        return Some(());
    }
    for number in expand_numbers(numbers, most)? {
        hosts.push(format!("{prefix}{number}{suffix}"));
    }
    hosts.truncate(most);
    Some(())
}

/// Expands `01-03,07`: numbers keep their leading zeros.
fn expand_numbers(numbers: &str, most: usize) -> Option<Vec<String>> {
    let mut expanded = Vec::new();
    for range in numbers.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if first.is_empty() || !first.bytes().chain(last.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let width = first.len();
        expanded.extend((from..=to).take(most).map(|number| format!("{number:0width$}")));
    }
    Some(expanded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(variables: &[(&str, &str)]) -> Result<Option<Job>, LauncherError> {
        detect(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    fn node_of(node: u16, nodes: u16) -> Numbering {
        Numbering::Nodes { node, nodes }
    }

    /// Variables that torchrun 2.9 sets on the second of two nodes.
    const TORCHRUN: &[(&str, &str)] = &[
        ("GROUP_RANK", "1"),
        ("GROUP_WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("RANK", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
    ];

    #[test]
    fn torchrun_says_which_node_this_is() {
        let job = job(TORCHRUN).unwrap().unwrap();
        assert_eq!((job.launcher, job.numbering), (Launcher::Torchrun, node_of(1, 2)));
        assert_eq!(job.first, Some(("node0".into(), 29500)));
        assert_eq!(job.key, "torchrun-none-0-node0-29500");
    }

    #[test]
    fn slurm_says_it_in_a_step_only() {
        let step: &[(&str, &str)] = &[
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_NODEID", "2"),
            ("SLURM_STEP_NUM_NODES", "3"),
            ("SLURM_STEP_NODELIST", "gpu[007-008,011]"),
        ];
        let found = job(step).unwrap().unwrap();
        assert_eq!((found.numbering, found.first), (node_of(2, 3), Some(("gpu007".into(), 0))));
        let batch: &[(&str, &str)] = &[("SLURM_JOB_ID", "4711"), ("SLURM_NODEID", "0"), ("SLURM_NNODES", "3")];
        assert_eq!(job(batch), Ok(None));
    }

    #[test]
    fn ray_and_kubernetes_say_it_in_other_words() {
        let ray: &[(&str, &str)] = &[
            ("NODE_RANK", "1"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "10.0.0.4"),
            ("MASTER_PORT", "41234"),
        ];
        let found = job(ray).unwrap().unwrap();
        assert_eq!((found.launcher, found.numbering), (Launcher::Ray, node_of(1, 2)));
        let kubernetes: &[(&str, &str)] = &[
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("PET_NODE_RANK", "0"),
            ("PET_NNODES", "4"),
            ("MASTER_ADDR", "train-worker-0"),
        ];
        let found = job(kubernetes).unwrap().unwrap();
        assert_eq!((found.launcher, found.numbering), (Launcher::Kubernetes, node_of(0, 4)));
    }

    /// Variables that Open MPI 5.0.11 sets for rank 3 of 4, the second of its node.
    const OPEN_MPI: &[(&str, &str)] = &[
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("OMPI_COMM_WORLD_NODE_RANK", "1"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_VERSION", "5.0.11"),
        ("PMIX_NAMESPACE", "prterun-node0-28254@1"),
        ("PMIX_RANK", "3"),
    ];
    /// Variables that MPICH 5.0.2 sets for rank 2 of 4, and the name of the job.
    const MPICH: &[(&str, &str)] = &[
        ("MPI_LOCALNRANKS", "2"),
        ("MPI_LOCALRANKID", "0"),
        ("PMI_FD", "9"),
        ("PMI_HOSTNAME", "node1"),
        ("PMI_JOBID", "node0:44975"),
        ("PMI_RANK", "2"),
        ("PMI_SIZE", "4"),
    ];

    #[test]
    fn open_mpi_and_mpich_number_ranks() {
        let found = job(OPEN_MPI).unwrap().unwrap();
        assert_eq!(found.numbering, Numbering::Ranks { rank: 3, ranks: 4 });
        assert_eq!((found.key.as_str(), found.first), ("mpi-prterun-node0-28254_1", None));
        let found = job(MPICH).unwrap().unwrap();
        assert_eq!(found.numbering, Numbering::Ranks { rank: 2, ranks: 4 });
        assert_eq!(found.key, "mpi-node0_44975");
        // Both start their programs by Slurm, in a step of its own or on some nodes only.
        let step = [("SLURM_JOB_ID", "1"), ("SLURM_NODEID", "0"), ("SLURM_STEP_NUM_NODES", "1")];
        assert_eq!(job(&[OPEN_MPI, &step].concat()).unwrap().unwrap().launcher, Launcher::OpenMpi);
        // Slurm's own PMI numbers nodes.
        let srun = [("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("PMI_JOBID", "1.0")];
        assert_eq!(job(&[&srun, &step[..]].concat()).unwrap().unwrap().launcher, Launcher::Slurm);
        let without: Vec<_> = MPICH.iter().filter(|(name, _)| *name != "PMI_JOBID").copied().collect();
        let error = job(&without).unwrap_err().to_string();
        assert!(
            error.starts_with("MPICH says PMI_JOBID=: the job has no name; call mpiexec with"),
            "{error}"
        );
    }

    #[test]
    fn nonsense_names_variable_and_launcher() {
        let wrong = |name, value| {
            let variables: Vec<_> = TORCHRUN
                .iter()
                .map(|(key, was)| (*key, if *key == name { value } else { *was }))
                .collect();
            job(&variables).unwrap_err().to_string()
        };
        assert!(wrong("GROUP_RANK", "2").starts_with("torchrun says GROUP_RANK=2: there are not so many nodes"));
        assert!(wrong("GROUP_WORLD_SIZE", "two").contains("GROUP_WORLD_SIZE=two: expected a number"));
        assert_eq!(job(&[]), Ok(None));
    }

    #[test]
    fn lists_of_hosts_are_expanded() {
        let expanded = |list| expand(list, 100).map(|hosts| hosts.join(" "));
        assert_eq!(expanded("a,b1").as_deref(), Some("a b1"));
        assert_eq!(expanded("gpu[01-03,07],login").as_deref(), Some("gpu01 gpu02 gpu03 gpu07 login"));
        assert_eq!(expanded("r[1-2]n[3-4]").as_deref(), Some("r1n3 r1n4 r2n3 r2n4"));
        assert_eq!(expanded("n[9-11]x").as_deref(), Some("n9x n10x n11x"));
        for wrong in ["", "n[1", "n1]", "n[a-b]", "n[]"] {
            assert_eq!(expand(wrong, 100), None, "{wrong}");
        }
        assert_eq!(
            expand("n[0-999999999]", 3).map(|hosts| hosts.len()),
            Some(3),
            "no more than there are"
        );
    }

    proptest! {
        #[test]
        fn any_list_is_read_or_refused(list in "[a-c0-9,\\[\\]-]{0,30}") {
            if let Some(hosts) = expand(&list, 50) {
                prop_assert!(!hosts.is_empty());
            }
        }
    }
}
