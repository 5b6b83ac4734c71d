//! How much memory this process may use: files of a tier in memory count against it (fault F13).

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::mounts::{Mount, Mounts};

/// The least of the machine's memory and the limits of all control groups that this process is in, in bytes, with what it is.
pub fn memory_limit(mounts: &Mounts) -> (u64, &'static str) {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match mounts.iter().filter_map(|mount| group_limit(mount, &groups)).min() {
        Some(limit) if limit < machine => (limit, "this job's memory limit"),
        _ => (machine, "this machine's memory"),
    }
}

fn group_limit(mount: &Mount, groups: &str) -> Option<u64> {
    let (file, controller) = match mount.fs_type.as_str() {
        "cgroup2" => ("memory.max", ""),
        "cgroup" if mount.options.split(',').any(|option| option == "memory") => ("memory.limit_in_bytes", "memory"),
        _ => return None,
    };
    let group = groups.lines().find_map(|line| group_of(line, controller))?;
    // In a container the mount shows a part of the tree, and the path may lie outside it: then the mount's own top is what holds.
    let below = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let below: PathBuf = below
        .components()
        .filter(|part| matches!(part, std::path::Component::Normal(_)))
        .collect();
    below
        .ancestors()
        .filter_map(|part| read_limit(&mount.point.join(part).join(file)))
        .min()
}

/// The path in a line `ID:CONTROLLERS:PATH`, if it is about `controller`.
fn group_of<'a>(line: &'a str, controller: &str) -> Option<&'a str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    controllers.split(',').any(|name| name == controller).then_some(path)
}

/// `max` is no number, and so no limit.
fn read_limit(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_group_above_holds() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("job/step")).unwrap();
        for (name, text) in [
            ("memory.max", "max\n"),
            ("job/memory.max", "1000\n"),
            ("job/step/memory.max", "2000\n"),
        ] {
            fs::write(at(name), text).unwrap();
        }
        let line = format!("30 1 0:26 / {} rw - cgroup2 cgroup2 rw", dir.path().display());
        let mounts = Mounts::parse(line.as_bytes());
        let limit = |groups: &str| mounts.iter().find_map(|mount| group_limit(mount, groups));
        assert_eq!(limit("3:cpu:/x\n0::/job/step\n"), Some(1000));
        assert_eq!(limit("0::/elsewhere/in/the/tree\n"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_limit(&Mounts::read()).0 > 1 << 20);
    }
}
