//! Memory that this process may use, and the free part of it. Files of a tier in memory count against it (fault F13).

use std::{
    fs,
    path::{Path, PathBuf},
};

use forebay_policy::pressure::JobMemory;

use crate::host::mountinfo::{self, MountLine, unescaped};

/// File with the share of time in which tasks of the machine waited for memory.
const MACHINE_PRESSURE: &str = "/proc/pressure/memory";

/// Version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupVersion {
    V1,
    V2,
}

/// A control group that this process is in, or one above it.
#[derive(Clone, Debug)]
struct Group {
    dir: PathBuf,
    /// Name in lines of `/proc/PID/cgroup`; `None` if unknown.
    path: Option<PathBuf>,
    version: CgroupVersion,
}

/// Memory gauge of this process. It looks up control groups once, and figures each time.
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    /// Control groups, the innermost first.
    groups: Vec<Group>,
}

/// Memory that another process may still take.
#[derive(Clone, Debug)]
pub struct Promise {
    /// Text of its `/proc/PID/cgroup`; empty if that can't be read: the promise then counts in every group.
    groups: String,
    bytes: u64,
}

impl Promise {
    /// Returns a promise to process `pid`.
    pub fn of(pid: i32, bytes: u64) -> Self {
        Self {
            groups: fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default(),
            bytes,
        }
    }
}

/// Memory of this process at one look.
#[derive(Clone, Copy, Debug)]
pub struct MemoryReading {
    /// Smallest limit of the machine and all groups, and smallest free part of any of them.
    pub memory: JobMemory,
    /// Name of the limit that holds, for people.
    pub what: &'static str,
}

impl Gauge {
    /// Finds the control groups of this process.
    pub fn find() -> Self {
        let own_groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::of(&mountinfo::read(), &own_groups)
    }

    fn of(mounts: &[u8], own_groups: &str) -> Self {
        let groups = mountinfo::lines(mounts).filter_map(|line| groups_of(&line, own_groups)).flatten();
        Self { groups: groups.collect() }
    }

    /// Measures the memory now.
    pub fn look(&self) -> MemoryReading {
        self.look_beside(&[]).0
    }

    /// Measures the memory, and returns the bytes of the free part that are promised. Each promise counts in the
    /// machine's memory, and in the groups of the process that has it.
    pub fn look_beside(&self, promises: &[Promise]) -> (MemoryReading, u64) {
        let sum = |counts: &dyn Fn(&Promise) -> bool| {
            promises
                .iter()
                .filter(|promise| counts(promise))
                .map(|promise| promise.bytes)
                .sum::<u64>()
        };
        let mut found = machine();
        let mut places = vec![(found.memory.free_bytes, sum(&|_| true))];
        for group in &self.groups {
            let Some((limit, free)) = group.limit_and_free() else { continue };
            places.push((free, sum(&|promise| group.may_contain(&promise.groups))));
            found.memory.free_bytes = found.memory.free_bytes.min(free);
            if limit < found.memory.limit_bytes {
                found.memory.limit_bytes = limit;
                found.what = "this job's memory limit";
            }
        }
        let own = self.groups.iter().find_map(|group| stalled(&group.dir.join("memory.pressure")));
        found.memory.stalled_percent = own.or_else(|| stalled(Path::new(MACHINE_PRESSURE))).unwrap_or(0.0);
        // In a group with more free memory than the tightest one, promises up to the difference do not count.
        let least = found.memory.free_bytes;
        let promised = places.iter().map(|(free, promised)| promised.saturating_sub(free - least)).max();
        (found, promised.unwrap_or(0))
    }
}

fn machine() -> MemoryReading {
    let info = rustix::system::sysinfo();
    let total = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)));
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = figure(&text, "MemAvailable:").map_or(total, |kib| kib.saturating_mul(1024));
    let memory = JobMemory {
        limit_bytes: total,
        free_bytes: available.min(total),
        stalled_percent: 0.0,
    };
    MemoryReading {
        memory,
        what: "this machine's memory",
    }
}

/// Returns the groups behind a mount: this process's, and all above it.
fn groups_of(line: &MountLine<'_>, own_groups: &str) -> Option<Vec<Group>> {
    let (root, point) = (unescaped(line.root), PathBuf::from(unescaped(line.point)));
    let (version, controller) = match line.fs_type {
        b"cgroup2" => (CgroupVersion::V2, ""),
        b"cgroup" if line.fs_options.split(|byte| *byte == b',').any(|option| option == b"memory") => (CgroupVersion::V1, "memory"),
        _ => return None,
    };
    let own = own_groups.lines().find_map(|line| group_of(line, controller))?;
    // In a container the mount shows a part of the tree, and the path may be outside it; then the top of the mount
    // holds.
    let stripped = Path::new(own).strip_prefix(&root);
    let is_known = stripped.is_ok() && !leads_up(own);
    let below = stripped.unwrap_or(Path::new(""));
    let below: PathBuf = below
        .components()
        .filter(|part| matches!(part, std::path::Component::Normal(_)))
        .collect();
    let all = below.ancestors().map(|part| Group {
        dir: point.join(part),
        path: is_known.then(|| Path::new(&root).join(part)),
        version,
    });
    Some(all.collect())
}

/// Returns the path in a line `ID:CONTROLLERS:PATH` that names `controller`.
fn group_of<'a>(line: &'a str, controller: &str) -> Option<&'a str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    controllers.split(',').any(|name| name == controller).then_some(path)
}

/// Returns true for the path of a group outside our namespace.
fn leads_up(path: &str) -> bool {
    Path::new(path).components().any(|part| part == std::path::Component::ParentDir)
}

impl Group {
    /// Returns true if a process with these lines in its `/proc/PID/cgroup` is in this group or below it, or if that is
    /// unknown.
    fn may_contain(&self, groups: &str) -> bool {
        let controller = match self.version {
            CgroupVersion::V1 => "memory",
            CgroupVersion::V2 => "",
        };
        let theirs = groups.lines().find_map(|line| group_of(line, controller));
        theirs
            .zip(self.path.as_ref())
            .is_none_or(|(theirs, own)| !leads_up(theirs) && Path::new(theirs).starts_with(own))
    }

    /// Returns the limit and the free bytes; `None` without a limit. Clean pages of files count as free.
    fn limit_and_free(&self) -> Option<(u64, u64)> {
        let number = |file: &str| fs::read_to_string(self.dir.join(file)).ok()?.trim().parse::<u64>().ok();
        let (limit, used, [pages, dirty]) = match self.version {
            // `max` parses as no limit. Above `high` the kernel slows a group down until it has given memory back.
            CgroupVersion::V2 => {
                let limits = ["memory.max", "memory.high"].map(number);
                let names = [["inactive_file", "active_file"], ["file_dirty", "file_writeback"]];
                (limits.into_iter().flatten().min()?, number("memory.current")?, names)
            }
            CgroupVersion::V1 => {
                let names = [["total_inactive_file", "total_active_file"], ["total_dirty", "total_writeback"]];
                (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?, names)
            }
        };
        let stat = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        let sum = |names: [&str; 2]| names.iter().filter_map(|name| figure(&stat, name)).sum::<u64>();
        let clean = sum(pages).saturating_sub(sum(dirty));
        Some((limit, limit.saturating_sub(used.saturating_sub(clean))))
    }
}

/// Returns the number in the line `NAME NUMBER...`.
fn figure(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

/// Returns the share of the last ten seconds in which a task waited for memory, in percent, from the line `some
/// avg10=1.23 ...`.
fn stalled(file: &Path) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    some.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn f13_the_strictest_group_above_holds() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        write(&at(""), &[("memory.max", "max\n")]);
        write(&at("job"), &[("memory.max", "10000\n"), ("memory.current", "9000\n")]);
        let stat = "anon 1000\nfile 7000\nshmem 5000\ninactive_file 500\nactive_file 1500\nfile_dirty 100\n";
        let pressure = "some avg10=12.50 avg60=1.00 avg300=0.10 total=99\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=9\n";
        let step = [("memory.max", "20000\n"), ("memory.high", "19000\n"), ("memory.current", "19000\n")];
        write(&at("job/step"), &step);
        write(&at("job/step"), &[("memory.stat", stat), ("memory.pressure", pressure)]);
        let mountinfo = format!("30 1 0:26 / {} rw shared:4 - cgroup2 cgroup2 rw\n", top.path().display());
        let found = Gauge::of(mountinfo.as_bytes(), "3:cpu:/x\n0::/job/step\n").look();
        let JobMemory {
            limit_bytes,
            free_bytes,
            stalled_percent,
        } = found.memory;
        assert_eq!((limit_bytes, found.what), (10_000, "this job's memory limit"));
        assert_eq!(free_bytes, 1_000, "the job's; of the step's 1,900 are clean pages of files");
        assert!((stalled_percent - 12.5).abs() < 1e-9);
        write(&at("job"), &[("memory.current", "1000\n")]);
        assert_eq!(Gauge::of(mountinfo.as_bytes(), "0::/job/step\n").look().memory.free_bytes, 1_900);
        let elsewhere = Gauge::of(mountinfo.as_bytes(), "0::/elsewhere/in/the/tree\n").look();
        assert_eq!(elsewhere.what, "this machine's memory");
    }

    #[test]
    fn f13_the_first_version_of_groups_is_read_too() {
        let top = tempfile::tempdir().unwrap();
        let stat = "inactive_file 9\ntotal_inactive_file 200\ntotal_active_file 100\ntotal_dirty 50\n";
        let files = [
            ("memory.limit_in_bytes", "4096\n"),
            ("memory.usage_in_bytes", "4000\n"),
            ("memory.stat", stat),
        ];
        write(&top.path().join("job"), &files);
        let point = top.path().display();
        let mountinfo = format!("31 1 0:27 / {point}/cpu rw - cgroup cgroup rw,cpu\n32 1 0:28 / {point} rw - cgroup cgroup rw,memory\n");
        let memory = Gauge::of(mountinfo.as_bytes(), "4:memory:/job\n1:cpu:/\n").look().memory;
        assert_eq!((memory.limit_bytes, memory.free_bytes), (4096, 346));
    }

    #[test]
    fn f13_what_is_promised_counts_in_the_groups_of_who_has_it() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        write(&at("job"), &[("memory.max", "10000\n"), ("memory.current", "4000\n")]);
        write(&at("job/step"), &[("memory.max", "10000\n"), ("memory.current", "2000\n")]);
        let mountinfo = format!("30 1 0:26 / {} rw shared:4 - cgroup2 cgroup2 rw\n", top.path().display());
        let gauge = Gauge::of(mountinfo.as_bytes(), "0::/job/step\n");
        let promised = |of: &[(&str, u64)]| {
            let promises = of.iter().map(|(path, bytes)| Promise {
                groups: path.to_string(),
                bytes: *bytes,
            });
            let (found, promised) = gauge.look_beside(&promises.collect::<Vec<_>>());
            assert_eq!(found.memory.free_bytes, 6_000);
            promised
        };
        assert_eq!(promised(&[]), 0);
        assert_eq!(
            promised(&[("0::/other\n", 500), ("0::/job2\n", 500), ("0::/../out\n", 500)]),
            0,
            "of other jobs"
        );
        assert_eq!(promised(&[("0::/job/other\n", 500), ("0::/other\n", 700)]), 500, "of this job");
        assert_eq!(
            promised(&[("0::/job/step\n", 500), ("", 50)]),
            550,
            "of this step, and of who knows where"
        );
        assert_eq!(promised(&[("0::/job\n", 7_000)]), 7_000, "more than is free");
        assert!(promised(&[("0::/other\n", u64::MAX / 2)]) > 1 << 60, "the machine is for all");
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Gauge::find().look().memory;
        assert!(memory.limit_bytes > 1 << 20 && memory.free_bytes <= memory.limit_bytes);
    }
}
