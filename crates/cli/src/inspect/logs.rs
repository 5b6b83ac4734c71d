//! `forebay doctor --logs`: the paths of the agents' logs.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use forebay_agent::host::{log::LOG_NAMES, private_dir::paths_in};
use forebay_settings::{
    config::{Config, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places,
    user_error::UserError,
};

/// Returns a line for each log of each agent, the newest first, or one that says that there is none.
///
/// # Errors
/// Bad input.
pub(crate) fn text(environment: &Environment) -> Result<String, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read()).value;
    let mut text = String::new();
    for log in logs_in(&runtime_dir) {
        let _ = writeln!(text, "{}", log.display());
    }
    if text.is_empty() {
        let _ = writeln!(text, "no agent has left a log in {}", runtime_dir.display());
    }
    Ok(text)
}

/// Returns the logs in the agents' directories. A directory that others can write to is not looked into.
fn logs_in(runtime_dir: &Path) -> Vec<PathBuf> {
    let dirs = paths_in(runtime_dir);
    let logs = dirs.iter().flat_map(|dir| LOG_NAMES.map(|name| dir.join(name)));
    logs.filter(|log| log.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn logs_of_all_agents_are_found_the_newest_first() {
        let root = tempfile::tempdir().unwrap();
        let runtime_dir = root.path().join("run");
        for log in ["forks/agent.log", "forks/agent.log.1", "0123456789abcdef/agent.log", "forks/lock"] {
            let log = runtime_dir.join(log);
            fs::create_dir_all(log.parent().unwrap()).unwrap();
            fs::write(log, "").unwrap();
        }
        fs::set_permissions(&runtime_dir, fs::Permissions::from_mode(0o700)).unwrap();
        let found = logs_in(&runtime_dir);
        let names: Vec<_> = found.iter().map(|log| log.strip_prefix(&runtime_dir).unwrap()).collect();
        let expected = ["0123456789abcdef/agent.log", "forks/agent.log", "forks/agent.log.1"];
        assert_eq!(names, expected.map(Path::new));
        assert_eq!(logs_in(&root.path().join("missing")), Vec::<PathBuf>::new());
    }
}
