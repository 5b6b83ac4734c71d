//! slowfs mounted for real. Without /dev/fuse the tests say so and pass; in CI (`FOREBAY_CI=1`) they fail.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Everything free, so that tests are fast; attributes are asked for each time.
const FREE: [&str; 10] = [
    "--mbps",
    "0",
    "--open-ms",
    "0",
    "--meta-us",
    "0",
    "--read-us",
    "0",
    "--attr-ttl-ms",
    "0",
];

struct TestMount {
    top: PathBuf,
    server: Child,
    control: BufReader<UnixStream>,
}

impl TestMount {
    /// A mount of a new, empty directory; None, said on standard error, where FUSE can't be had.
    #[expect(clippy::print_stderr, reason = "a test has nowhere else to say that it did not run")]
    fn new(program: &mut Command, options: &[&str]) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            assert!(std::env::var_os("FOREBAY_CI").is_none_or(|ci| ci != "1"), "/dev/fuse: {error}");
            eprintln!("not tested: /dev/fuse: {error}");
            return None;
        }
        let top = std::env::temp_dir().join(format!("slowfs-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        for name in ["src", "mnt"] {
            fs::create_dir_all(top.join(name)).expect("a directory to mount on");
        }
        let control = top.join("control");
        program
            .args([top.join("src"), top.join("mnt")])
            .arg("--control")
            .arg(&control)
            .args(FREE)
            .args(options);
        let server = program.spawn().expect("slowfs starts");
        let deadline = Instant::now() + Duration::from_secs(120);
        let stream = loop {
            match UnixStream::connect(&control) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "slowfs does not answer: {error}"),
            }
            sleep(Duration::from_millis(10));
        };
        Some(Self {
            top,
            server,
            control: BufReader::new(stream),
        })
    }

    fn src(&self, name: &str) -> PathBuf {
        self.top.join("src").join(name)
    }

    fn mnt(&self, name: &str) -> PathBuf {
        self.top.join("mnt").join(name)
    }

    fn ask(&mut self, line: &str) -> String {
        self.control
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .expect("slowfs listens");
        let mut answer = String::new();
        self.control.read_line(&mut answer).expect("slowfs answers");
        answer.trim_end().to_owned()
    }

    fn count(&mut self, key: &str) -> u64 {
        let stats: serde_json::Value = serde_json::from_str(&self.ask("stats")).expect("stats are JSON");
        stats[key].as_u64().expect("a count")
    }

    #[track_caller]
    fn assert_same(&self, name: &str) {
        let [above, below] = [self.mnt(name), self.src(name)].map(|path| {
            let m = fs::symlink_metadata(path).expect("it exists");
            (
                m.ino(),
                m.mode(),
                m.nlink(),
                m.uid(),
                m.gid(),
                m.size(),
                (m.mtime(), m.mtime_nsec()),
                (m.ctime(), m.ctime_nsec()),
            )
        });
        assert_eq!(above, below, "{name}");
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if matches!(self.server.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.server.id().to_string()).status();
            let _ = self.server.wait();
        }
        let _ = fs::remove_dir_all(&self.top);
    }
}

fn slowfs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_slowfs"))
}

fn mount() -> Option<TestMount> {
    TestMount::new(&mut slowfs(), &[])
}

/// Every kind of change, seen alike from both sides.
fn change_everything(m: &TestMount) {
    fs::write(m.mnt("file"), vec![7; 300_000]).expect("write");
    m.assert_same("file");
    File::options()
        .append(true)
        .open(m.mnt("file"))
        .and_then(|mut file| file.write_all(b"end"))
        .expect("append");
    assert_eq!(fs::read(m.src("file")).expect("read below")[299_999..], *b"\x07end");
    File::options()
        .write(true)
        .open(m.mnt("file"))
        .and_then(|file| file.set_len(10))
        .expect("truncate");
    fs::set_permissions(m.mnt("file"), fs::Permissions::from_mode(0o640)).expect("chmod");
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789));
    File::options()
        .write(true)
        .open(m.mnt("file"))
        .and_then(|file| file.set_times(times))
        .expect("utimens");
    m.assert_same("file");
    fs::hard_link(m.mnt("file"), m.mnt("hard")).expect("link");
    m.assert_same("hard");
    fs::create_dir(m.mnt("dir")).expect("mkdir");
    fs::rename(m.mnt("hard"), m.mnt("dir/hard")).expect("rename");
    m.assert_same("dir/hard");
    m.assert_same("file");
    symlink("nowhere", m.mnt("link")).expect("symlink");
    assert_eq!(fs::read_link(m.mnt("link")).expect("readlink"), Path::new("nowhere"));
    m.assert_same("link");
    assert_eq!(
        fs::remove_dir(m.mnt("dir")).expect_err("it is not empty").kind(),
        std::io::ErrorKind::DirectoryNotEmpty
    );
    fs::remove_file(m.mnt("dir/hard")).expect("unlink");
    fs::remove_dir(m.mnt("dir")).expect("rmdir");
    m.assert_same("file");
}

#[test]
fn both_sides_see_the_same() {
    let Some(m) = mount() else { return };
    change_everything(&m);
}

#[test]
fn more_files_than_descriptors() {
    // 100 descriptors: 50 files are held, the others known by name.
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 100 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_slowfs")]);
    let Some(m) = TestMount::new(&mut few, &[]) else { return };
    for i in 0..200 {
        fs::write(m.src(&format!("f{i}")), format!("{i}")).expect("write below");
    }
    for i in 0..200 {
        assert_eq!(fs::read_to_string(m.mnt(&format!("f{i}"))).expect("read"), format!("{i}"));
    }
    fs::rename(m.mnt("f199"), m.mnt("moved")).expect("rename");
    assert_eq!(fs::read_to_string(m.mnt("moved")).expect("read"), "199");
    change_everything(&m);
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    let Some(m) = mount() else { return };
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.mnt("gone"))
        .expect("create");
    file.write_all_at(b"still here", 0).expect("write");
    fs::remove_file(m.mnt("gone")).expect("unlink");
    let meta = file.metadata().expect("fstat");
    assert_eq!((meta.nlink(), meta.size()), (0, 10));
    let mut text = [0; 10];
    file.read_exact_at(&mut text, 0).expect("read");
    assert_eq!(&text, b"still here");
}

#[test]
fn a_listing_with_attributes_is_paid_by_request() {
    let Some(mut m) = mount() else { return };
    for i in 0..1000 {
        fs::write(m.src(&format!("f{i}")), "").expect("write below");
    }
    m.ask("set attr_ttl_ms 60000");
    m.ask("reset");
    let sizes = fs::read_dir(m.mnt(""))
        .expect("opendir")
        .map(|entry| entry.and_then(|e| e.metadata()).expect("attributes").len());
    assert_eq!((sizes.count(), m.count("lookup")), (1000, 0));
    assert!((1..100).contains(&m.count("readdirplus")));
}

#[test]
fn pages_stay_until_the_file_changes() {
    let Some(mut m) = mount() else { return };
    fs::write(m.src("file"), vec![1; 1_000_000]).expect("write below");
    for _ in 0..3 {
        assert_eq!(fs::read(m.mnt("file")).expect("read"), vec![1; 1_000_000]);
    }
    assert_eq!(m.count("bytes_read"), 1_000_000);
    sleep(Duration::from_millis(20));
    fs::write(m.src("file"), vec![2; 1_000_000]).expect("write below");
    assert_eq!(fs::read(m.mnt("file")).expect("read"), vec![2; 1_000_000]);
    assert_eq!(m.count("bytes_read"), 2_000_000);
}

#[test]
fn fails_as_told() {
    let Some(mut m) = mount() else { return };
    fs::write(m.src("file"), "text").expect("write below");
    assert_eq!(m.ask("fail ESTALE open"), "ok");
    assert_eq!(File::open(m.mnt("file")).expect_err("open fails").raw_os_error(), Some(116));
    assert!(m.mnt("file").exists(), "nothing but open fails");
    assert_eq!(m.ask("ok"), "ok");
    assert_eq!(fs::read_to_string(m.mnt("file")).expect("read"), "text");
    assert!(m.ask("fail EWHAT").starts_with("error: ") && m.ask("fail EIO dance").starts_with("error: "));
}

#[test]
fn hangs_as_told() {
    let Some(mut m) = mount() else { return };
    fs::write(m.src("file"), "text").expect("write below");
    m.ask("hang");
    let path = m.mnt("file");
    let reader = std::thread::spawn(move || fs::read_to_string(path));
    sleep(Duration::from_millis(200));
    assert!(!reader.is_finished());
    m.ask("resume");
    assert_eq!(reader.join().expect("no panic").expect("read"), "text");
}

#[test]
fn ends_while_it_hangs_and_a_file_is_open() {
    let Some(mut m) = mount() else { return };
    fs::write(m.src("file"), "text").expect("write below");
    let mut open = File::open(m.mnt("file")).expect("open");
    m.ask("hang");
    let path = m.mnt("other");
    let stuck = std::thread::spawn(move || path.exists());
    sleep(Duration::from_millis(100));
    Command::new("kill").arg(m.server.id().to_string()).status().expect("kill runs");
    m.server.wait().expect("slowfs ends");
    assert!(!stuck.join().expect("no panic"));
    assert!(fs::read_dir(m.mnt("")).expect("nothing is mounted").next().is_none());
    assert!(open.read(&mut [0; 4]).is_err());
}

#[test]
fn is_as_slow_as_told() {
    let Some(mut m) = mount() else { return };
    fs::write(m.src("file"), vec![1; 2_000_000]).expect("write below");
    m.ask("set mbps 10");
    m.ask("set open_ms 50");
    let start = Instant::now();
    fs::read(m.mnt("file")).expect("read");
    // 50 ms for the open, and 2 MB less the burst of 0.26 at 10 MB/s: 174.
    assert!(start.elapsed() > Duration::from_millis(215), "{:?}", start.elapsed());
}
