//! Shared libraries under a source: answers the loader, which opens them itself, with the path of a copy.
//!
//! The loader asks through the audit library, for a name that a program gave (`dlopen`) and for each candidate of a
//! search (`DT_NEEDED`). For a candidate it keeps the name that it asked for, so the answer can be `/proc/self/fd/N`.
//! A name that a program gave becomes the name of the object, and its directory that of `$ORIGIN`, where the object's
//! own libraries are looked for. So the answer is a link in a mirror of the source's directories, below the agent's
//! directory; a search that comes from there is one in the source. The link goes away, and the object gets the name
//! that was asked for, before anybody sees it.
//!
//! One library must not be in a program twice. The loader compares inodes, and those of a copy and its source differ.
//! So a table holds the source's inode of each loaded object.
//!
//! The loader holds its lock meanwhile, except at a program's end.

use core::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int, c_uint},
    ptr,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use forebay_contract::{
    FileTime, Identity,
    libraries::{HooksCell, LibraryHooks, LinkMap, MIRROR},
};

use crate::{
    copies, lookup, open,
    path::{Digits, PathBuffer, ShortBuffer, descriptor_name, split},
    state::{self, Serving},
    sys::{self, Errno},
};

/// Origin of a name: the program, or `DT_NEEDED`.
const LA_SER_ORIG: c_uint = 1;
/// Most objects that a program has loaded while it gets copies.
const OBJECTS_MAX: usize = 2048;

/// Path that can't be opened, without a question to the source. (After a null pointer the loader looks at an error of
/// some earlier call.)
const ABSENT: &CStr = c"";

/// Cell by which the audit library finds the functions below.
#[unsafe(export_name = "forebay_library_hooks")]
pub(crate) static HOOKS_CELL: HooksCell = HooksCell::new(ptr::null_mut());

static HOOKS: LibraryHooks = LibraryHooks {
    search,
    opened,
    closed,
    finished,
};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Offers the functions to the audit library, now that they can be called.
extern "C" fn start() {
    HOOKS_CELL.store(ptr::from_ref(&HOOKS).cast_mut(), Release);
}

/// State of the loading, for one thread at a time. All of it is zero at first, so that it takes no room in the file.
struct Locked {
    /// Process whose thread uses it; 0 for none. A child of `fork` has the state of its parent, and no other thread.
    user: AtomicU64,
    state: UnsafeCell<Loading>,
}

// SAFETY: only used by the thread that has set `user`.
unsafe impl Sync for Locked {}

impl Locked {
    /// Returns the result of `act` on the state; `None`: another thread uses it, which happens at a program's end only.
    fn with<T>(&self, act: impl FnOnce(&mut Loading) -> T) -> Option<T> {
        let process = sys::process_id();
        let user = self.user.load(Acquire);
        if user == process || self.user.compare_exchange(user, process, Acquire, Acquire).is_err() {
            return None;
        }
        // SAFETY: this thread has set `user` just now.
        let result = act(unsafe { &mut *self.state.get() });
        self.user.store(0, Release);
        Some(result)
    }
}

static LOADING: Locked = Locked {
    user: AtomicU64::new(0),
    state: UnsafeCell::new(Loading {
        objects: Objects {
            all: [const { LoadedObject::NONE }; OBJECTS_MAX],
            used: 0,
            is_full: false,
            is_walked: false,
        },
        answer: PathBuffer::new(),
        asked: PathBuffer::new(),
        pending: None,
    }),
};

/// The library that is being loaded, and those that are loaded.
struct Loading {
    objects: Objects,
    /// Path of the last copy that the loader was given.
    answer: PathBuffer,
    /// Name that it had asked for.
    asked: PathBuffer,
    pending: Option<PendingCopy>,
}

/// A copy that the loader was given, and has not opened for certain.
#[derive(Clone, Copy)]
struct PendingCopy {
    /// Descriptor of the copy.
    fd: c_int,
    /// Process that opened it: a child has the state of its parent.
    process: u64,
    source: Identity,
    copy: InodeKey,
}

/// Device and inode of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InodeKey {
    dev: u64,
    ino: u64,
}

/// An object of the program.
#[derive(Clone, Copy)]
struct LoadedObject {
    map: *const LinkMap,
    /// Version of the source, without its time of change: a new name of the file, or another mode, changes that.
    source: Identity,
    /// File that is mapped: the source's, or a copy of it.
    mapped: InodeKey,
}

impl LoadedObject {
    const NONE: Self = Self {
        map: ptr::null(),
        source: Identity {
            dev: 0,
            ino: 0,
            size: 0,
            mtime: FileTime { sec: 0, nsec: 0 },
            ctime: FileTime { sec: 0, nsec: 0 },
        },
        mapped: InodeKey { dev: 0, ino: 0 },
    };
}

/// The loaded objects that are files of a source.
struct Objects {
    all: [LoadedObject; OBJECTS_MAX],
    used: usize,
    /// True once an object had no room.
    is_full: bool,
    /// True once the objects that were there at the start are in.
    is_walked: bool,
}

impl Objects {
    fn slots(&mut self) -> &mut [LoadedObject] {
        self.all.get_mut(..self.used).unwrap_or(&mut [])
    }

    fn add(&mut self, object: LoadedObject) {
        if let Some(free) = self.slots().iter_mut().find(|slot| slot.map.is_null()) {
            *free = object;
            return;
        }
        match self.all.get_mut(self.used) {
            Some(free) => {
                *free = object;
                self.used += 1;
            }
            None => self.is_full = true,
        }
    }

    fn remove(&mut self, map: *const LinkMap) {
        if let Some(slot) = self.slots().iter_mut().find(|slot| slot.map == map) {
            *slot = LoadedObject::NONE;
        }
    }

    /// Returns the object that is this file of a source.
    fn of_source(&mut self, source: &Identity) -> Option<LoadedObject> {
        self.slots()
            .iter()
            .find(|slot| !slot.map.is_null() && slot.source == *source)
            .copied()
    }

    /// Adds a file of a source that was loaded as it is.
    fn add_source(&mut self, serving: Serving, map: *const LinkMap, name: &CStr) {
        let mut buffer = PathBuffer::new();
        let Ok(spelled) = lookup::spell(libc::AT_FDCWD, name, &mut buffer) else {
            return;
        };
        if !serving.pages.run.covers(spelled) {
            return;
        }
        if let Ok(stat) = sys::stat_at(libc::AT_FDCWD, name, 0) {
            let source = version(lookup::identity_of(&stat));
            let mapped = InodeKey::of(&stat);
            self.add(LoadedObject { map, source, mapped });
        }
    }

    /// Adds the objects that were there before the first question.
    fn walk(&mut self, serving: Serving, any: *const LinkMap) {
        if self.is_walked {
            return;
        }
        self.is_walked = true;
        let mut first = any;
        // SAFETY: the loader's list, which does not change under its lock.
        while let Some(previous) = unsafe { first.as_ref() }.map(|map| map.previous).filter(|map| !map.is_null()) {
            first = previous;
        }
        // SAFETY: as above.
        while let Some(map) = unsafe { first.as_ref() } {
            if let Some(name) = name_of(map) {
                self.add_source(serving, map, name);
            }
            first = map.next;
        }
    }
}

impl InodeKey {
    const fn of(stat: &libc::stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
        }
    }

    const fn of_source(source: &Identity) -> Self {
        Self {
            dev: source.dev,
            ino: source.ino,
        }
    }
}

impl Loading {
    /// Closes what the loader has opened meanwhile, or does not want.
    fn settle(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        // The loader tells nothing of a library that it had already, or refused. Meanwhile the program may have closed
        // all descriptors, and opened others.
        if sys::stat_fd(pending.fd).is_ok_and(|stat| InodeKey::of(&stat) == pending.copy) {
            sys::close(pending.fd);
        }
        if self.is_link() && pending.process == sys::process_id() {
            sys::unlink(self.answer.c_str());
        }
    }

    /// Takes note of an object that was loaded under a name; returns true if it is the copy of the last answer, which
    /// has the name that was asked for then.
    fn take_opened(&mut self, map: *mut LinkMap, name: &CStr) -> bool {
        let is_link = self.is_link();
        let (expected, answered) = if is_link {
            (&self.answer, name)
        } else {
            (&self.asked, behind_mirror(name).unwrap_or(name))
        };
        let pending = self.pending.filter(|_| answered.to_bytes() == expected.bytes());
        let Some(PendingCopy { source, copy, .. }) = pending else {
            return false;
        };
        self.objects.add(LoadedObject { map, source, mapped: copy });
        if is_link {
            // SAFETY: the loader's own string, whose room is at least as long (see `answer`).
            unsafe { rename(map, self.asked.c_str()) };
        }
        self.settle();
        true
    }

    /// Returns whether the last answer is a link in the mirror.
    fn is_link(&self) -> bool {
        !self.answer.bytes().starts_with(b"/proc/")
    }

    /// Returns the path of a copy for a name; `Ok(None)`: the name itself.
    ///
    /// # Errors
    /// The error with which the source can't be opened.
    fn find_copy(&mut self, serving: Serving, name: &CStr, how: c_uint) -> Result<Option<*const c_char>, Errno> {
        let mut buffer = PathBuffer::new();
        let Ok(spelled) = lookup::spell(libc::AT_FDCWD, name, &mut buffer) else {
            return Ok(None);
        };
        if !serving.pages.run.covers(spelled) || serving.pages.run.excludes(spelled) || self.objects.is_full {
            return Ok(None);
        }
        let mut fd = open::open_for_loader(serving, spelled, name)?;
        let Some((source, mut file)) = identify(serving, fd) else {
            sys::close(fd);
            return Ok(None);
        };
        if let Some(loaded) = self.objects.of_source(&source).filter(|loaded| loaded.mapped != file) {
            // The program has it already: from the source, or from a copy that has no such name, or not any more.
            sys::close(fd);
            let Some(same) = open_mapped(serving, &loaded) else {
                return Ok(None);
            };
            (fd, file) = (same, loaded.mapped);
        }
        let is_copy = file != InodeKey::of_source(&source);
        let answer = is_copy.then(|| self.answer(serving, (fd, source, file), spelled, name, how));
        if answer.flatten().is_none() {
            sys::close(fd);
        }
        Ok(answer.flatten())
    }

    /// Returns the path by which the loader opens the copy behind a descriptor; `None`: it opens the source.
    fn answer(
        &mut self,
        serving: Serving,
        (fd, source, copy): (c_int, Identity, InodeKey),
        spelled: &[u8],
        name: &CStr,
        how: c_uint,
    ) -> Option<*const c_char> {
        // Another file is refused under its own name.
        let mut magic = [0; 4];
        if sys::read_full(fd, &mut magic).is_err() || magic != *b"\x7FELF" || !sys::may_execute(fd) {
            return None;
        }
        let is_link = how == LA_SER_ORIG;
        self.answer.truncate(0);
        self.asked.truncate(0);
        if is_link {
            self.make_link(serving, (fd, copy), spelled)?;
        } else {
            let mut room = ShortBuffer::new();
            self.answer.push(descriptor_name(fd, &mut room)?.to_bytes())?;
        }
        if self.asked.push(name.to_bytes()).is_none() || (is_link && self.answer.bytes().len() < name.to_bytes().len()) {
            // There would be no room for the name in place of the link's.
            sys::unlink(self.answer.c_str());
            return None;
        }
        self.pending = Some(PendingCopy {
            fd,
            process: sys::process_id(),
            source,
            copy,
        });
        Some(self.answer.c_str().as_ptr())
    }

    /// Makes a link to an open copy in the mirror of its directory, and writes its path to `answer`.
    fn make_link(&mut self, serving: Serving, (fd, copy): (c_int, InodeKey), spelled: &[u8]) -> Option<()> {
        let (parent, base) = split(spelled)?;
        // By number: a debugger follows the link, too.
        let (process, descriptor) = (Digits::of(sys::process_id()), Digits::of(fd as u64));
        let mut room = ShortBuffer::new();
        for part in [b"/proc/", process.bytes(), b"/fd/", descriptor.bytes()] {
            room.push(part)?;
        }
        let opened = room.c_str();
        let path = &mut self.answer;
        push_mirror(serving, path)?;
        path.push(parent)?;
        let parent_len = path.bytes().len();
        for part in [b"/", process.bytes(), b"-", descriptor.bytes(), b"-", base] {
            path.push(part)?;
        }
        let mut made = sys::make_link(opened, path.c_str());
        match made {
            Ok(()) => {}
            Err(Errno(libc::ENOENT)) => {
                let mut directory = PathBuffer::new();
                directory.push(path.bytes().get(..parent_len)?)?;
                make_directories(&mut directory)?;
                made = sys::make_link(opened, path.c_str());
            }
            Err(_) => {
                // Of a process with this number that has ended in between.
                sys::unlink(path.c_str());
                made = sys::make_link(opened, path.c_str());
            }
        }
        made.ok()?;
        // In a process namespace without its own /proc the number is another process's.
        let leads_to_copy = sys::stat_at(libc::AT_FDCWD, path.c_str(), 0).is_ok_and(|stat| InodeKey::of(&stat) == copy);
        if !leads_to_copy {
            sys::unlink(path.c_str());
        }
        leads_to_copy.then_some(())
    }
}

/// Returns the source of an open file, and the file: they differ for a copy.
fn identify(serving: Serving, fd: c_int) -> Option<(Identity, InodeKey)> {
    let stat = sys::stat_fd(fd).ok()?;
    let copied = copies::find(serving, &stat).and_then(|copy| copy.identity());
    let source = copied.unwrap_or_else(|| lookup::identity_of(&stat));
    Some((version(source), InodeKey::of(&stat)))
}

/// Returns a version without its time of change.
fn version(identity: Identity) -> Identity {
    let ctime = FileTime::default();
    Identity { ctime, ..identity }
}

/// Opens the copy that the program has mapped already, whatever its time.
fn open_mapped(serving: Serving, loaded: &LoadedObject) -> Option<c_int> {
    let mut buffer = PathBuffer::new();
    // SAFETY: the loader's record of an object that is loaded.
    let name = unsafe { loaded.map.as_ref() }.and_then(name_of)?;
    let spelled = lookup::spell(libc::AT_FDCWD, name, &mut buffer).ok()?;
    let reading = serving.read();
    let fd = lookup::known(reading.as_ref(), spelled)
        .ok()?
        .open(libc::O_RDONLY | libc::O_CLOEXEC)?;
    if sys::stat_fd(fd).is_ok_and(|stat| InodeKey::of(&stat) == loaded.mapped) {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// Writes the path of the mirror.
fn push_mirror(serving: Serving, path: &mut PathBuffer) -> Option<()> {
    path.push(serving.pages.run.agent_dir())?;
    path.push(b"/")?;
    path.push(MIRROR.as_bytes())
}

/// Returns the name in the source of one in the mirror.
fn behind_mirror(name: &CStr) -> Option<&CStr> {
    let bytes = name.to_bytes_with_nul();
    // Also in a process that has left the run's namespace: objects that it has loaded before look there.
    let below = bytes.strip_prefix(state::agent_dir()?)?.strip_prefix(b"/")?;
    let rest = below.strip_prefix(MIRROR.as_bytes())?;
    (rest.first() == Some(&b'/'))
        .then(|| CStr::from_bytes_with_nul(rest).ok())
        .flatten()
}

/// Makes a directory of the mirror, and those above it.
fn make_directories(path: &mut PathBuffer) -> Option<()> {
    let whole = path.bytes().len();
    let mut end = 0;
    let mut copy = PathBuffer::new();
    while end < whole {
        let rest = path.bytes().get(end + 1..)?;
        end += 1 + rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        copy.truncate(0);
        copy.push(path.bytes().get(..end)?)?;
        match sys::make_directory(copy.c_str()) {
            Ok(()) | Err(Errno(libc::EEXIST)) => {}
            Err(_) if end < whole => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// Mirrors the directory of a name in the mirror if the source has it: the loader never looks again into a directory
/// that is not there.
fn mirror_directory(name: &CStr, in_source: &CStr) {
    let parents = split(name.to_bytes()).zip(split(in_source.to_bytes()));
    let Some(((mirrored, _), (directory, _))) = parents else { return };
    let mut path = PathBuffer::new();
    if path.push(mirrored).is_none() || sys::stat_at(libc::AT_FDCWD, path.c_str(), 0).is_ok() {
        return;
    }
    let mut source = PathBuffer::new();
    if source.push(directory).is_some() && sys::stat_at(libc::AT_FDCWD, source.c_str(), 0).is_ok() {
        let _ = make_directories(&mut path);
    }
}

/// Returns the name of a loaded object.
fn name_of(map: &LinkMap) -> Option<&CStr> {
    // SAFETY: the loader's string.
    let name = (!map.name.is_null()).then(|| unsafe { CStr::from_ptr(map.name) })?;
    (!name.is_empty()).then_some(name)
}

/// Hook for [`LibraryHooks::search`].
unsafe extern "C" fn search(name: *const c_char, how: c_uint, any: *const LinkMap) -> *const c_char {
    // SAFETY: the loader's string.
    let given = unsafe { CStr::from_ptr(name) };
    let mirrored = behind_mirror(given);
    let source = mirrored.unwrap_or(given);
    // A name without a slash is searched for, and comes again; the loader fills in what stands behind a dollar sign.
    let is_path = given.to_bytes().contains(&b'/') && !given.to_bytes().contains(&b'$');
    LOADING.with(Loading::settle);
    let Some(serving) = state::serving().filter(|_| is_path) else {
        return source.as_ptr();
    };
    let found = LOADING.with(|loading| {
        loading.objects.walk(serving, any);
        loading.find_copy(serving, source, how)
    });
    match found {
        Some(Ok(Some(copy))) => copy,
        Some(Ok(None)) | None => source.as_ptr(),
        Some(Err(Errno(errno))) => {
            if mirrored.is_some() && how != LA_SER_ORIG {
                mirror_directory(given, source);
            }
            let is_absent = how != LA_SER_ORIG && errno == libc::ENOENT;
            if is_absent { ABSENT.as_ptr() } else { source.as_ptr() }
        }
    }
}

/// Hook for [`LibraryHooks::opened`].
unsafe extern "C" fn opened(map: *mut LinkMap) {
    // SAFETY: the loader's record.
    let Some(name) = unsafe { map.as_ref() }.and_then(name_of) else {
        return;
    };
    let is_copy = LOADING.with(|loading| loading.take_opened(map, name)).unwrap_or(false);
    // SAFETY: as above.
    let Some(name) = unsafe { map.as_ref() }.and_then(name_of) else {
        return;
    };
    if let Some(source) = behind_mirror(name) {
        // SAFETY: as above; it becomes shorter.
        unsafe { rename(map, source) };
    }
    // SAFETY: as above.
    let renamed = unsafe { map.as_ref() }.and_then(name_of).filter(|_| !is_copy);
    if let (Some(name), Some(serving)) = (renamed, state::serving()) {
        LOADING.with(|loading| loading.objects.add_source(serving, map, name));
    }
}

/// Gives a loaded object another name, in place.
///
/// # Safety
/// The room of its name holds the other one, which may be a part of it.
unsafe fn rename(map: *mut LinkMap, name: &CStr) {
    // SAFETY: as the caller says; the bytes may overlap.
    unsafe { ptr::copy(name.as_ptr(), (*map).name, name.to_bytes_with_nul().len()) };
}

/// Hook for [`LibraryHooks::closed`].
unsafe extern "C" fn closed(map: *const LinkMap) {
    LOADING.with(|loading| loading.objects.remove(map));
}

/// Hook for [`LibraryHooks::finished`].
unsafe extern "C" fn finished() {
    LOADING.with(Loading::settle);
}
