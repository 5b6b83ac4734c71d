//! Mounts of this process, and kinds of file systems.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use forebay_agent::host::mountinfo::{self, MountLine, unescaped};

/// Kind of a file system, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// Shared over a network, or a FUSE one that most likely is.
    Network,
    /// In memory.
    Memory,
    /// On a disk of this machine, as far as can be told.
    Local,
    /// The kernel's own: no files in the usual sense.
    Kernel,
}

/// Types that are shared over a network. FUSE ones are told apart by [`LOCAL_FUSE`].
const NETWORK: &[&str] = &[
    "9p",
    "acfs",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "dvs",
    "fhgfs",
    "fuse",
    "gfs2",
    "glusterfs",
    "gpfs",
    "kafs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "panfs",
    "pvfs2",
    "smb3",
    "smbfs",
    "wekafs",
];
/// FUSE file systems whose files are on this machine.
const LOCAL_FUSE: &[&str] = &[
    "apfs",
    "archivemount",
    "cryfs",
    "doublecmd",
    "encfs",
    "exfat",
    "fuse-overlayfs",
    "gocryptfs",
    "gvfsd-fuse",
    "lxcfs",
    "mergerfs",
    "ntfs-3g",
    "overlayfs",
    "portal",
    "rar2fs",
    "ratarmount",
    "revokefs-fuse",
    "snapfuse",
    "squashfuse",
    "squashfuse_ll",
    "vmware-vmblk",
];
const MEMORY: &[&str] = &["hugetlbfs", "ramfs", "tmpfs"];
const KERNEL: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount point.
    pub point: PathBuf,
    /// Directory of the file system that is mounted: `/`, unless it is a bind mount.
    pub root: PathBuf,
    /// Device number, as `stat` gives it.
    pub dev: u64,
    /// Type, such as `nfs4` or `fuse.sshfs`.
    pub fs_type: String,
    /// Mounted device, or server and path.
    pub source: OsString,
    /// The mount is read-only.
    pub read_only: bool,
    /// Options of the file system itself.
    pub options: String,
}

impl Mount {
    /// Returns the kind of the file system.
    pub fn kind(&self) -> FsKind {
        let fs_type = self.fs_type.as_str();
        if let Some(subtype) = fs_type.strip_prefix("fuse.") {
            // AppImages mount themselves under their own name.
            let local = LOCAL_FUSE.contains(&subtype) || subtype.ends_with(".AppImage");
            return if local { FsKind::Local } else { FsKind::Network };
        }
        if MEMORY.contains(&fs_type) {
            FsKind::Memory
        } else if KERNEL.contains(&fs_type) {
            FsKind::Kernel
        } else if NETWORK.contains(&fs_type) && self.source != "cvmfs2" {
            // CVMFS, a plain `fuse`, has a disk cache of its own.
            FsKind::Network
        } else {
            FsKind::Local
        }
    }
}

/// All mounts that this process sees.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads the present mounts; there are none without `/proc`.
    pub fn read() -> Self {
        Self::parse(&mountinfo::read())
    }

    /// From the text of `/proc/self/mountinfo`. Of several mounts on one point only the last can be seen.
    pub fn parse(text: &[u8]) -> Self {
        let mut mounts: Vec<Mount> = Vec::new();
        for mount in mountinfo::lines(text).map(|line| mount(&line)) {
            mounts.retain(|other| other.point != mount.point);
            mounts.push(mount);
        }
        Self(mounts)
    }

    /// The mount that an absolute path without links or `..` lies on.
    pub fn of(&self, path: &Path) -> Option<&Mount> {
        self.0
            .iter()
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.as_os_str().len())
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }
}

/// Converts a line of mountinfo.
fn mount(line: &MountLine<'_>) -> Mount {
    let text = |field| String::from_utf8_lossy(field).into_owned();
    let is_read_only = |list: &[u8]| list.split(|byte| *byte == b',').any(|option| option == b"ro");
    Mount {
        point: unescaped(line.point).into(),
        root: unescaped(line.root).into(),
        dev: line.dev,
        fs_type: text(line.fs_type),
        source: unescaped(line.source),
        read_only: is_read_only(line.options) || is_read_only(line.fs_options),
        options: text(line.fs_options),
    }
}

/// Longest chain of links, as the kernel's.
const LINKS_MAX: usize = 40;

/// Follows `path` (absolute) as the kernel would until it comes to one of `places`, and gives that place's number
/// with the part of `path`, as it is spelled, that led there. Nothing on or below a place is looked at: a file system
/// that hangs is not touched.
pub fn reach(path: &Path, places: &[PathBuf]) -> Option<(usize, PathBuf)> {
    let mut spelled = PathBuf::from("/");
    let mut real = PathBuf::from("/");
    let mut links = LINKS_MAX;
    for part in path.components().skip(1) {
        spelled.push(part);
        real = step(&real, part.as_os_str().as_bytes(), places, &mut links)?;
        if let Some(place) = place_of(&real, places) {
            return Some((place, spelled));
        }
    }
    None
}

fn place_of(real: &Path, places: &[PathBuf]) -> Option<usize> {
    let within = places.iter().enumerate().filter(|(_, place)| real.starts_with(place));
    within.max_by_key(|(_, place)| place.as_os_str().len()).map(|(at, _)| at)
}

/// One component further: its target if it is a link. `None` when there is nothing, or too many links.
fn step(real: &Path, name: &[u8], places: &[PathBuf], links: &mut usize) -> Option<PathBuf> {
    if place_of(real, places).is_some() {
        // Reached in the middle of a link's target: whatever follows is there too, unless it leads out by `..`.
        return Some(if name == b".." {
            real.parent()?.to_owned()
        } else {
            real.join(std::ffi::OsStr::from_bytes(name))
        });
    }
    match name {
        b"." => return Some(real.to_owned()),
        b".." => return Some(real.parent().unwrap_or(real).to_owned()),
        _ => {}
    }
    let next = real.join(std::ffi::OsStr::from_bytes(name));
    if place_of(&next, places).is_some() {
        return Some(next);
    }
    let kind = fs::symlink_metadata(&next).ok()?.file_type();
    if !kind.is_symlink() {
        return Some(next);
    }
    *links = links.checked_sub(1)?;
    let target = fs::read_link(&next).ok()?;
    let mut at = if target.is_absolute() {
        PathBuf::from("/")
    } else {
        real.to_owned()
    };
    for part in target.components().filter(|part| !matches!(part, std::path::Component::RootDir)) {
        at = step(&at, part.as_os_str().as_bytes(), places, links)?;
    }
    Some(at)
}

/// Returns the kind of the file system of `dir`, a path without links, and its type.
pub fn kind_of(dir: &Path, mounts: &Mounts) -> (FsKind, String) {
    let magic = rustix::fs::statfs(dir).map_or(0, |stat| stat.f_type as u64);
    let (kind, fs_type) = mounts
        .of(dir)
        .map_or((FsKind::Local, "unknown"), |mount| (mount.kind(), mount.fs_type.as_str()));
    // Mounts can be hidden (another root, a filtered /proc), the kernel's own number can't.
    match known_magic(magic) {
        Some((known, name)) if known != kind => (known, name.to_owned()),
        _ => (kind, fs_type.to_owned()),
    }
}

fn known_magic(magic: u64) -> Option<(FsKind, &'static str)> {
    Some(match magic & 0xffff_ffff {
        0x6969 => (FsKind::Network, "nfs"),
        0x0bd0_0bd0 => (FsKind::Network, "lustre"),
        0x4750_4653 => (FsKind::Network, "gpfs"),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => (FsKind::Network, "cifs"),
        0x00c3_6400 => (FsKind::Network, "ceph"),
        0x1983_0326 => (FsKind::Network, "beegfs"),
        0x2003_0528 => (FsKind::Network, "orangefs"),
        0x0102_1997 => (FsKind::Network, "9p"),
        0x5346_414f | 0x6b41_4653 => (FsKind::Network, "afs"),
        0xaad7_aaea => (FsKind::Network, "panfs"),
        0x0102_1994 => (FsKind::Memory, "tmpfs"),
        0x8584_58f6 => (FsKind::Memory, "ramfs"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const TEXT: &[u8] = b"\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
62 22 0:45 / /lustre rw,relatime shared:3 - lustre 10.0.0.1@o2ib:/pfs rw
63 22 0:46 / /home/a\\040b rw - nfs4 server:/home ro,vers=4.2
64 22 0:47 / /run/user/1/doc rw - fuse.portal portal rw
65 22 0:48 / /data rw - fuse.sshfs host:/ rw
66 22 0:49 / /data rw - tmpfs tmpfs rw
";

    #[test]
    fn mountinfo_is_read() {
        let mounts = Mounts::parse(TEXT);
        let kind = |path: &str| mounts.of(Path::new(path)).map(Mount::kind);
        assert_eq!(kind("/etc/passwd"), Some(FsKind::Local));
        assert_eq!(kind("/lustre/x"), Some(FsKind::Network));
        assert_eq!(kind("/lustrex"), Some(FsKind::Local));
        assert_eq!(kind("/run/user/1/doc/x"), Some(FsKind::Local));
        assert_eq!(kind("/data/x"), Some(FsKind::Memory), "only the upper mount is seen");
        let home = mounts.of(Path::new("/home/a b/c")).unwrap();
        assert!(home.read_only && home.kind() == FsKind::Network && home.dev == rustix::fs::makedev(0, 46));
    }

    #[test]
    fn every_kind_of_file_system_is_told_apart() {
        let kind = |fs_type: &str, source: &str| {
            let line = format!("1 0 0:5 / /m rw - {fs_type} {source} rw");
            Mounts::parse(line.as_bytes()).of(Path::new("/m")).map(Mount::kind)
        };
        for fs_type in [
            "nfs",
            "nfs4",
            "lustre",
            "gpfs",
            "cifs",
            "smb3",
            "ceph",
            "fuse.glusterfs",
            "beegfs",
            "fuse.juicefs",
            "fuse",
            "9p",
        ] {
            assert_eq!(kind(fs_type, "x"), Some(FsKind::Network), "{fs_type}");
        }
        for fs_type in ["ext4", "xfs", "zfs", "overlay", "fuseblk", "fuse.lxcfs", "fuse.x.AppImage"] {
            assert_eq!(kind(fs_type, "x"), Some(FsKind::Local), "{fs_type}");
        }
        assert_eq!(kind("fuse", "cvmfs2"), Some(FsKind::Local));
    }

    #[test]
    fn links_are_followed_up_to_the_place_and_no_further() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        // The place does not exist: had it been touched, following would have failed.
        let places = [at("net")];
        symlink(at("net/deep"), at("absolute")).unwrap();
        fs::create_dir(at("sub")).unwrap();
        symlink("../net/x", at("sub/relative")).unwrap();
        symlink("sub", at("twice")).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("net/../sub", at("through")).unwrap();
        let spelled = |name: &str| reach(&at(name), &places).map(|(_, spelled)| spelled);
        assert_eq!(spelled("net/a/b"), Some(at("net")));
        assert_eq!(spelled("absolute/train/x.jpg"), Some(at("absolute")));
        assert_eq!(spelled("twice/relative/y"), Some(at("twice/relative")));
        assert_eq!(spelled("sub/../absolute/y"), Some(at("sub/../absolute")));
        for name in ["sub/x", "sub", "loop/x", "missing/net", "through/x"] {
            assert_eq!(spelled(name), None, "{name}");
        }
    }
}
