//! The nodes of a job that share the samples of a loader. Converts types; what is done is in `forebay_peers::join`.

use std::{
    collections::HashMap,
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use forebay_agent::samples::protocol::{PeerAddress, PeerSecret, PeerTable};
use forebay_peers::{Group, JoinError, Joined};
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};

use crate::{errors::to_python, fork::duration, loader::LoaderRank};

/// The nodes of a job that share the samples of one loader, from the launcher's variables on.
#[pyclass(frozen)]
pub(crate) struct LoaderNodes {
    group: Group,
    joined: Mutex<Option<Joined>>,
    is_cancelled: AtomicBool,
}

#[pymethods]
impl LoaderNodes {
    /// Returns the nodes of a job by the variables of its launcher, for a loader of this name; `None` if there is one
    /// node, or the launcher does not say.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's dictionary is ours")]
    fn find(variables: HashMap<String, String>, name: &str) -> PyResult<Option<Self>> {
        let found = Group::of(&|variable| variables.get(variable).cloned(), name);
        let group = found.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(group.map(|group| Self {
            group,
            joined: Mutex::new(None),
            is_cancelled: AtomicBool::new(false),
        }))
    }

    /// The number of nodes.
    #[getter]
    fn nodes(&self) -> u16 {
        self.group.nodes()
    }

    /// Blocks until all nodes have met in a directory, at most `wait_s` seconds, or until `cancel` is called.
    #[pyo3(signature = (directory, ranks, interface, wait_s))]
    #[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's path is ours")]
    fn join(&self, py: Python<'_>, directory: PathBuf, ranks: u32, interface: Option<&str>, wait_s: f64) -> PyResult<()> {
        let wait = duration(wait_s)?;
        let is_unwanted = || self.is_cancelled.load(Relaxed);
        let joined = py.detach(|| self.group.join(&directory, ranks, interface, wait, &is_unwanted));
        let joined = joined.map_err(|error: JoinError| PyOSError::new_err(error.to_string()))?;
        *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = Some(joined);
        Ok(())
    }

    /// Ends a `join` that is under way in another thread.
    fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
    }

    /// Has the agent of a rank share the loader's samples with the other nodes. Nothing happens before they have met.
    fn share(&self, py: Python<'_>, rank: &LoaderRank) -> PyResult<()> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Joined { met, listener }) = joined.as_ref() else {
            return Ok(());
        };
        let address = |member: &forebay_peers::Member| PeerAddress {
            name: member.name.clone(),
            address: member.address,
        };
        let table = PeerTable {
            nodes: met.members.members().iter().map(address).collect(),
            here: met.members.here(),
            is_even: met.ranks.iter().all(|ranks| *ranks == met.ranks[0]),
            secret: PeerSecret(met.secret.clone()),
        };
        py.detach(|| rank.rank().share(table, listener.as_fd())).map_err(to_python)
    }

    /// Removes the files by which the nodes have met, if this is the first node.
    #[expect(clippy::needless_pass_by_value, reason = "what is converted from Python's path is ours")]
    fn leave(&self, directory: PathBuf) {
        self.group.leave(&directory);
    }
}
