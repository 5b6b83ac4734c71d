//! The other nodes of the job in which a program runs.

use std::path::Path;

use forebay_agent::tiering::sharing::{FileSharing, JobNodes, SharingChoices, is_launched};
use forebay_contract::env;
use forebay_settings::{
    config::{
        Config,
        peers::{PeerNodes, PeerSecretSource},
    },
    environment::Environment,
    places,
    user_error::UserError,
};

use crate::tell;

/// Reason why a node has no directory in which it can meet others.
const NO_DIR: &str = "there is no home directory; set FOREBAY_PEERS_DIR to a directory that all nodes see";

/// Returns the nodes of the job, if there are several and their files are to be shared. Passes the reason to `say` if
/// there are several that can't share them.
///
/// # Errors
/// The option `--peers` asks for other nodes, and they can't be found.
pub fn find(config: &Config, environment: &Environment, say: &dyn Fn(&str)) -> Result<Option<JobNodes>, UserError> {
    let variables = |name: &str| environment.get(name).map(|value| value.to_string_lossy().into_owned());
    let hosts = match &config.peers.nodes.value {
        PeerNodes::Off => return Ok(None),
        PeerNodes::Auto => None,
        PeerNodes::Hosts(hosts) => Some(hosts.clone()),
    };
    let secret_file = match &config.peers.secret.value {
        PeerSecretSource::File(file) => Some(file.clone()),
        // The store is the training program's, which has not begun.
        PeerSecretSource::Meeting | PeerSecretSource::Store => None,
    };
    let choices = SharingChoices {
        hosts,
        job: variables(env::JOB),
        interface: config.peers.interface.value.clone(),
        secret_file,
        group_max: config.peers.group_max.value,
    };
    match JobNodes::find(&variables, choices) {
        Ok(None) if config.peers.are_required() && !is_launched(&variables) => Err(refusal(
            config,
            "no launcher names the nodes here; start it behind srun, mpirun or in a pod, or give --peers node1,node2",
        )),
        Ok(nodes) => Ok(nodes),
        Err(why) if config.peers.are_required() => Err(refusal(config, &why)),
        Err(why) => {
            say(&format!("files are not shared with the other nodes: {why}"));
            Ok(None)
        }
    }
}

/// Shares the files of a run with the other nodes of its job, from the moment on in which they have met. With the
/// option `--peers` it blocks until then.
///
/// # Errors
/// The option `--peers` asks for other nodes, and they did not meet.
pub fn share(nodes: JobNodes, config: &Config, environment: &Environment, agent_dir: &Path) -> Result<Option<FileSharing>, UserError> {
    let say = |why: &str| tell(&format!("forebay: {why}\n"));
    match (places::peers_dir(config, environment), config.peers.are_required()) {
        (None, true) => Err(refusal(config, NO_DIR)),
        (None, false) => {
            say(&format!("files are not shared with the other nodes: {NO_DIR}"));
            Ok(None)
        }
        (Some(dir), true) => {
            let sharing = nodes.begin_shared(&dir, agent_dir).map_err(|why| refusal(config, &why))?;
            Ok(Some(sharing))
        }
        (Some(dir), false) => Ok(Some(nodes.begin(dir, agent_dir, say))),
    }
}

fn refusal(config: &Config, why: &str) -> UserError {
    let nodes = &config.peers.nodes;
    UserError::bad_input(format_args!("{} {}: {why}", nodes.origin, nodes.value))
}
