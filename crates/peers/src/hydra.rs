//! The job of a rank that MPICH's launcher has started. It tells its programs no name of the job.

use std::{fs, path::Path};

/// Program that starts the ranks of a node.
const PROXY: &str = "hydra_pmi_proxy";
/// Option of the proxy, before host and port of the launcher: the same on all nodes of a job.
const LAUNCHER: &str = "--control-port";

/// Returns host and port of the `mpiexec` that has started this process; `None` if no process above it is a proxy of
/// MPICH's.
pub fn job() -> Option<String> {
    let mut process = rustix::process::getppid()?.as_raw_nonzero().get();
    while process > 1 {
        let words = fs::read(format!("/proc/{process}/cmdline")).ok()?;
        if let Some(launcher) = launcher_of(&String::from_utf8_lossy(&words)) {
            return Some(launcher);
        }
        let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of a program may have blanks and brackets.
        process = status.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    }
    None
}

/// Returns the launcher that a proxy's words name.
fn launcher_of(words: &str) -> Option<String> {
    let mut words = words.split('\0');
    let is_proxy = Path::new(words.next()?).file_name()? == PROXY;
    let launcher = words.skip_while(|word| *word != LAUNCHER).nth(1)?;
    (is_proxy && !launcher.is_empty()).then(|| launcher.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_names_its_launcher() {
        let words = "/usr/bin/hydra_pmi_proxy\0--control-port\0node0:44975\0--rmk\0user\0";
        assert_eq!(launcher_of(words).as_deref(), Some("node0:44975"));
        for other in [
            "",
            "sh\0--control-port\0a:1\0",
            "hydra_pmi_proxy\0--control-port\0",
            "hydra_pmi_proxy\0a\0",
        ] {
            assert_eq!(launcher_of(other), None, "{other:?}");
        }
    }
}
