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

use forebay_agent::host::peer_table::PeerTable;
use forebay_contract::CONTRACT_VERSION;
use forebay_peers::{
    Group, JoinError, Joined, Rank,
    exchange::{Exchange, ExchangeError},
    join::JoinOptions,
};
use forebay_settings::{
    config::{
        Config, WrittenSettings,
        peers::{PeerNodes, PeerSecretSource, PeerSettings},
    },
    environment::Environment,
    places,
};
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
    types::PyBytes,
};
use zeroize::Zeroizing;

use crate::{errors::to_python, fork::duration, loader::LoaderRank};

/// Returns the name of the job whose ranks MPICH's launcher has started, this process among them; `None` if it has not.
#[pyfunction]
pub(crate) fn mpich_job() -> Option<String> {
    forebay_peers::hydra::job()
}

/// Settings of the nodes of a job that share samples, of variables and configuration files.
#[pyclass(frozen)]
pub(crate) struct NodeSettings {
    variables: HashMap<String, String>,
    settings: PeerSettings,
    dir: Option<PathBuf>,
}

#[pymethods]
impl NodeSettings {
    /// Resolves the settings by the variables of an environment.
    #[staticmethod]
    fn read(variables: HashMap<String, String>) -> PyResult<Self> {
        let environment = Environment::of(variables.clone());
        let config = Config::resolve(&WrittenSettings::default(), &environment);
        let config = config.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let dir = places::peers_dir(&config, &environment);
        Ok(Self {
            variables,
            settings: config.peers,
            dir,
        })
    }

    /// True if each node is to stay alone.
    #[getter]
    fn is_off(&self) -> bool {
        self.settings.nodes.value == PeerNodes::Off
    }
}

/// A place in which nodes meet.
enum Meeting {
    Directory(PathBuf),
    Store { host: String, port: u16 },
}

/// The nodes of a job that share the samples of one loader, from the launcher's variables on.
#[pyclass(frozen)]
pub(crate) struct LoaderNodes {
    group: Group,
    meeting: Meeting,
    options: JoinOptions,
    /// The nodes, and the place in which they have met until it is removed.
    joined: Mutex<Option<Joined>>,
    left: Mutex<Option<Box<dyn Exchange>>>,
    is_cancelled: AtomicBool,
}

#[pymethods]
impl LoaderNodes {
    /// Returns the nodes of a job for a loader of this name; `None` if there is one node, or the launcher does not say.
    /// `rank` is the first of this node, of a job that has this name, and the node has `local_ranks`.
    #[staticmethod]
    fn find(settings: &NodeSettings, name: &str, job: String, rank: u32, local_ranks: u32) -> PyResult<Option<Self>> {
        let NodeSettings { variables, settings, dir } = settings;
        let hosts = match &settings.nodes.value {
            PeerNodes::Hosts(hosts) => Some(hosts.as_slice()),
            PeerNodes::Auto | PeerNodes::Off => None,
        };
        let rank = Rank { job, rank, local_ranks };
        let found = Group::of(&|variable| variables.get(variable).cloned(), hosts, rank, name);
        let Some(group) = found.map_err(|error| PyOSError::new_err(error.to_string()))? else {
            return Ok(None);
        };
        let store = group.store().map(|(host, port)| Meeting::Store {
            host: host.to_owned(),
            port,
        });
        let secret_file = match &settings.secret.value {
            PeerSecretSource::File(file) => Some(file.clone()),
            PeerSecretSource::Meeting | PeerSecretSource::Store => None,
        };
        let meeting = match (&settings.secret.value, &settings.dir.value, store) {
            (PeerSecretSource::Store, _, Some(store)) | (PeerSecretSource::File(_), None, Some(store)) => store,
            (PeerSecretSource::Store, _, None) => {
                let line = "FOREBAY_PEERS_SECRET=store: MASTER_ADDR and MASTER_PORT name no store; set it to a file that all nodes have, or unset it";
                return Err(PyOSError::new_err(line));
            }
            _ => Meeting::Directory(dir.clone().ok_or_else(|| {
                PyOSError::new_err("there is no home directory; set FOREBAY_PEERS_DIR to a directory that all nodes see")
            })?),
        };
        let options = JoinOptions {
            interface: settings.interface.value.clone(),
            secret_file,
            group_max: settings.group_max.value,
            version: CONTRACT_VERSION,
        };
        Ok(Some(Self {
            group,
            meeting,
            options,
            joined: Mutex::new(None),
            left: Mutex::new(None),
            is_cancelled: AtomicBool::new(false),
        }))
    }

    /// Host and port of the job's store if the nodes are to meet there, and whether it will hold their secret.
    #[getter]
    fn store(&self) -> Option<(String, u16, bool)> {
        match &self.meeting {
            Meeting::Store { host, port } => Some((host.clone(), *port, self.options.secret_file.is_none())),
            Meeting::Directory(_) => None,
        }
    }

    /// True after `cancel`.
    #[getter]
    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Relaxed)
    }

    /// Blocks until all nodes have met, at most `wait_s` seconds, or until `cancel` is called. `store` is a client of
    /// the job's store, where the nodes meet there. Returns this node's address and the number of nodes.
    #[pyo3(signature = (store, wait_s))]
    fn join(&self, py: Python<'_>, store: Option<Py<PyAny>>, wait_s: f64) -> PyResult<(String, usize)> {
        let wait = duration(wait_s)?;
        let is_unwanted = || self.is_cancelled.load(Relaxed);
        let exchange: Box<dyn Exchange> = match (&self.meeting, store) {
            (Meeting::Directory(dir), _) => Box::new(self.group.directory(dir)),
            (Meeting::Store { host, port }, Some(store)) => Box::new(JobStore {
                store,
                prefix: format!("forebay/{}/", self.group.key()),
                place: format!("the job's store at {host}:{port}"),
            }),
            (Meeting::Store { .. }, None) => return Err(PyValueError::new_err("these nodes meet in a store; give its client")),
        };
        let joined = py.detach(|| {
            let joined = self.group.join(&*exchange, &self.options, wait, &is_unwanted);
            joined.map(|joined| (joined, exchange))
        });
        let (joined, exchange) = joined.map_err(|error: JoinError| PyOSError::new_err(error.to_string()))?;
        let members = &joined.met.members;
        let here = members.member(members.here());
        let said = (
            here.map(|member| member.address.to_string()).unwrap_or_default(),
            members.members().len(),
        );
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(exchange);
        *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = Some(joined);
        Ok(said)
    }

    /// Ends a `join` that is under way in another thread, and hurries a `leave`.
    fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
    }

    /// Has the agent of a rank share the loader's samples with the other nodes. Nothing happens before they have met.
    fn share(&self, py: Python<'_>, rank: &LoaderRank) -> PyResult<()> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(joined) = joined.as_ref() else {
            return Ok(());
        };
        let table = PeerTable::of(joined);
        py.detach(|| rank.rank().share(&table, joined.listener.as_fd())).map_err(to_python)
    }

    /// Removes the values by which the nodes have met, if this is the first node. Blocks until all nodes have read
    /// them, at most some seconds; a second call waits for the first.
    fn leave(&self, py: Python<'_>) {
        py.detach(|| {
            let exchange = &mut *self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some(exchange), Some(joined)) = (exchange.take(), joined.as_ref()) {
                joined.leave(&*exchange, &|| self.is_cancelled.load(Relaxed));
            }
        });
    }
}

/// A client of a job's store, with the methods of torch's.
struct JobStore {
    store: Py<PyAny>,
    /// Begin of the names of all values.
    prefix: String,
    /// The store, for messages.
    place: String,
}

impl JobStore {
    fn call<T>(&self, f: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, ExchangeError> {
        let done = Python::try_attach(|py| f(self.store.bind(py)).map_err(|error| error.to_string()));
        done.unwrap_or_else(|| Err("the program is ending".into()))
            .map_err(|reason| ExchangeError::Store {
                place: self.place.clone(),
                reason: reason.lines().next().unwrap_or_default().to_owned(),
            })
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Exchange for JobStore {
    fn are_there(&self, names: &[String]) -> Result<Vec<bool>, ExchangeError> {
        let is_there = |name: &String| self.call(|store| store.call_method1("check", (vec![self.name(name)],))?.extract());
        names.iter().map(is_there).collect()
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Zeroizing<Vec<u8>>>, ExchangeError> {
        let name = self.name(name);
        let bytes = self.call(|store| {
            // `get` would wait for a value.
            if !store.call_method1("check", (vec![&name],))?.extract::<bool>()? {
                return Ok(None);
            }
            store.call_method1("get", (&name,))?.extract::<Vec<u8>>().map(Some)
        })?;
        let most = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Ok(bytes.map(|mut bytes| {
            bytes.truncate(most);
            Zeroizing::new(bytes)
        }))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ExchangeError> {
        self.call(|store| {
            let value = PyBytes::new(store.py(), bytes);
            store.call_method1("set", (self.name(name), value)).map(drop)
        })
    }

    fn clear(&self, names: &[String]) -> Result<(), ExchangeError> {
        names
            .iter()
            .try_for_each(|name| self.call(|store| store.call_method1("delete_key", (self.name(name),)).map(drop)))
    }

    fn end(&self, names: &[String]) {
        // A store that is gone holds nothing any more.
        let _ = self.clear(names);
    }

    fn describe(&self, name: Option<&str>) -> String {
        match name {
            Some(name) => format!("{} in {}", self.name(name), self.place),
            None => self.place.clone(),
        }
    }
}
