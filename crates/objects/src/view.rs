//! A *view*: a directory on a local disk whose files are the objects of a bucket, each whole and of one version. Programs need nothing to read
//! it: the kernel serves it.
//!
//! Beside the view `DIR/NAME` lies `DIR/.NAME.forebay-view`, for its owner alone: `lock`; `manifest`, what the view holds; and while it is being
//! fetched `journal`, `staged/` and, for a view that was never whole, `tree/`. What is fetched is staged. Only when all of it is there and on
//! the disk is it given its names: a new view all at once, with its directory; one that is there file by file, each in one step.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock, fstat},
    io::Errno,
};

use crate::{
    Error,
    disk::{self, Dir, Tree},
    fetch::{self, Fetched},
    limits,
    names::{Layout, Odd, above},
    plan::{Earlier, Plan, bytes_of},
    record::{Journal, Manifest, Record},
    store::Store,
};

const STAGED: &str = "staged";
const TREE: &str = "tree";

/// What is going on, for a person to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// So many objects were listed so far.
    Listed(u64),
    /// So many bytes in so many objects are going to be fetched.
    Missing {
        /// Bytes.
        bytes: u64,
        /// Objects.
        objects: u64,
    },
    /// So many more bytes have come.
    Fetched(u64),
}

/// Who is told. From several threads.
pub type Tell<'a> = &'a (dyn Fn(Event) + Sync);

/// What a view may be, and how sure it shall be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// The most bytes of all files together.
    pub bytes_max: Option<u64>,
    /// Read everything that is there and compare it with its checksum.
    pub verify: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Files in the view, and their bytes.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were fetched, by this attempt or one that it goes on from.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Files that were removed, since their objects are gone.
    pub removed: u64,
    /// Files that were fetched anew, since somebody else had altered or removed them.
    pub altered: u64,
    /// Files whose objects are gone and that somebody else has altered: they stay.
    pub left: u64,
    /// Objects that have no place in a directory tree: by reason, how many, and one of them.
    pub left_out: BTreeMap<Odd, (u64, String)>,
}

/// A view, whole or yet to be fetched, with its lock.
#[derive(Debug)]
pub struct View {
    path: PathBuf,
    parent: Dir,
    /// The view's name in it.
    name: String,
    state: Dir,
    state_name: String,
    lock: OwnedFd,
}

impl View {
    /// The view that is, or is to be, at `path` (absolute). Its own directory beside it is made where it is missing.
    ///
    /// # Errors
    /// [`Error::Input`]: something else has the name, or may have been prepared by somebody else.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let refuse = |why: &str| Error::Input(format!("{} {why}", path.display()));
        let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
            return Err(refuse("can't be a view; name a directory in another one"));
        };
        let state_name = format!(".{name}.forebay-view");
        if state_name.len() > limits::NAME_BYTES_MAX {
            return Err(refuse("has too long a name"));
        }
        let parent = Dir::named(above)?;
        let state = parent.make_dir(&state_name)?;
        state.check_private()?;
        let lock = disk::create(&state, "lock")?.into();
        Ok(Self {
            path: path.to_owned(),
            parent,
            name: name.to_owned(),
            state,
            state_name,
            lock,
        })
    }

    /// Takes the view for this process alone; `false`: others use it.
    ///
    /// # Errors
    /// No locks on this file system; or the view was removed a moment ago.
    pub fn try_alone(&self) -> Result<bool, Error> {
        match flock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.check_is_there().map(|()| true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(self.state.error("lock", "lock", errno)),
        }
    }

    /// Holds the view as it is, together with others. Where somebody has it alone, `waiting` is called, and then it takes as long as that lasts.
    /// Who had it alone gives that back by this.
    ///
    /// # Errors
    /// As [`View::try_alone`].
    pub fn share(&self, waiting: &dyn Fn()) -> Result<(), Error> {
        let mut how = FlockOperation::NonBlockingLockShared;
        loop {
            match flock(&self.lock, how) {
                Ok(()) => return self.check_is_there(),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    waiting();
                    how = FlockOperation::LockShared;
                }
                Err(errno) => return Err(self.state.error("lock", "lock", errno)),
            }
        }
    }

    fn check_is_there(&self) -> Result<(), Error> {
        let stat = fstat(&self.lock).map_err(|errno| self.state.error("lock", "stat", errno))?;
        if stat.st_nlink > 0 {
            return Ok(());
        }
        Err(Error::Input(format!("{} was removed a moment ago; try again", self.path.display())))
    }

    /// Whether the view is whole, and of this address.
    ///
    /// # Errors
    /// [`Error::Input`]: it is a view of another one, something else has its name, or its directory may be somebody else's.
    pub fn is_whole_of(&self, address: &str) -> Result<bool, Error> {
        let Some(url) = Manifest::url(&self.state)? else { return Ok(false) };
        self.check_url(&url, address)?;
        Ok(self.state.dir(TREE)?.is_none() && self.own_dir()?.is_some())
    }

    /// The directory of a view that was whole, if it is there and nobody else's.
    fn own_dir(&self) -> Result<Option<Dir>, Error> {
        let there = self.parent.dir(&self.name)?;
        there.as_ref().map(Dir::check_own).transpose()?;
        Ok(there)
    }

    fn check_url(&self, known: &str, address: &str) -> Result<(), Error> {
        if known == address {
            return Ok(());
        }
        let dir = self.path.display();
        Err(Error::Input(format!(
            "{dir} is a view of {known}; name another directory, or remove it: forebay view --remove {dir}"
        )))
    }

    /// Makes the view what the store lists now. The caller has it alone.
    ///
    /// # Errors
    /// [`Error::Input`] and others: nothing has changed. [`Error::Unfinished`]: some of it is staged.
    pub fn fill(&self, store: &Store, wish: &Wish, tell: Tell<'_>) -> Result<Outcome, Error> {
        let filled = self.fill_alone(store, wish, tell);
        if filled.is_err() {
            // What was refused leaves nothing behind.
            let _ = self.tidy();
        }
        filled
    }

    fn fill_alone(&self, store: &Store, wish: &Wish, tell: Tell<'_>) -> Result<Outcome, Error> {
        let address = store.address().to_string();
        let manifest = Manifest::read(&self.state)?;
        if let Some(manifest) = &manifest {
            self.check_url(&manifest.url, &address)?;
        }
        // A view that was never whole is put together beside its place.
        let there = self.parent.dir(&self.name)?;
        let is_new = manifest.is_none() || there.is_none() || self.state.dir(TREE)?.is_some();
        // An empty directory is replaced by our own, whoever made it; what a view has is given as it is.
        if !is_new {
            self.own_dir()?;
        }
        if is_new
            && let Some(there) = &there
            && !there.is_empty()?
        {
            return Err(Error::Input(format!(
                "{} has something in it, and is no view; name a directory that is empty, or is not there yet",
                self.path.display()
            )));
        }
        let mut pass = 1;
        loop {
            let objects = store.list(&|count| tell(Event::Listed(count)))?;
            let layout = Layout::of(objects, store.address().prefix(), self.path.as_os_str().len());
            if layout.files.is_empty() {
                return Err(Error::Input(format!("{address} has no object that can be a file")));
            }
            let filling = Filling {
                view: self,
                layout: &layout,
                manifest: manifest.as_ref(),
                address: &address,
                is_new,
            };
            match filling.run(store, wish, tell)? {
                Pass::Done(outcome) => return Ok(outcome),
                Pass::Changed(key) if pass == limits::PASSES_MAX => {
                    let why = format!("it is not what was listed, {pass} times in a row; try again when nobody writes there");
                    let object = store.address().object(&key);
                    return Err(Error::Unfinished(Box::new(Error::Store { object, why })));
                }
                Pass::Changed(_) => pass += 1,
            }
        }
    }

    /// Removes the view: what was fetched, and what lies beside it. Files that somebody else has put there or altered stay. The caller has it
    /// alone. Gives how many files and bytes went, and whether anything stayed.
    ///
    /// # Errors
    /// [`Error::Input`]: there is no view.
    pub fn remove(self) -> Result<(u64, u64, bool), Error> {
        let manifest = Manifest::read(&self.state)?;
        let (mut files, mut bytes) = (0, 0);
        let mut stays = false;
        if let (Some(manifest), Some(dir)) = (&manifest, self.parent.dir(&self.name)?) {
            let mut tree = Tree::new(dir);
            for record in manifest.records.values() {
                if remove(&mut tree, record)? {
                    files += 1;
                    bytes += record.size;
                }
            }
            remove_directories(&mut tree, manifest.records.keys(), &manifest.directories)?;
            stays = !self.parent.remove_dir(&self.name)?;
        }
        Manifest::remove(&self.state)?;
        self.sweep()?;
        self.state.remove("lock")?;
        self.parent.remove_dir(&self.state_name)?;
        Ok((files, bytes, stays))
    }

    /// Whether there is a view, or the beginning of one, at `path`: nothing is made.
    pub fn exists(path: &Path) -> bool {
        let name = path.file_name().map(OsStr::as_bytes).map(String::from_utf8_lossy);
        name.is_some_and(|name| path.with_file_name(format!(".{name}.forebay-view")).is_dir())
    }

    /// Removes the directory beside a view of which nothing is there.
    fn tidy(&self) -> Result<(), Error> {
        let is_bare = Manifest::url(&self.state)?.is_none() && self.state.remove_dir(STAGED)? && self.state.remove_dir(TREE)?;
        if is_bare {
            self.sweep()?;
            self.state.remove("lock")?;
            self.parent.remove_dir(&self.state_name)?;
        }
        Ok(())
    }

    /// Removes what was only needed while it was fetched.
    fn sweep(&self) -> Result<(), Error> {
        Journal::remove(&self.state)?;
        for name in ["journal.new", "manifest.new"] {
            self.state.remove(name)?;
        }
        if let Some(staged) = self.state.dir(STAGED)? {
            for name in staged.names()? {
                staged.remove(&name)?;
            }
            self.state.remove_dir(STAGED)?;
        }
        // Ours alone, and made by us name by name.
        match std::fs::remove_dir_all(self.state.path.join(TREE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::disk(&self.state.path.join(TREE), "remove", error)),
            _ => Ok(()),
        }
    }
}

/// One pass: a listing, and what it takes to have it.
struct Filling<'a> {
    view: &'a View,
    layout: &'a Layout,
    manifest: Option<&'a Manifest>,
    address: &'a str,
    is_new: bool,
}

/// What one pass came to.
enum Pass {
    Done(Outcome),
    /// This object, perhaps among others, changed meanwhile: there has to be another listing.
    Changed(String),
}

impl Filling<'_> {
    fn run(&self, store: &Store, wish: &Wish, tell: Tell<'_>) -> Result<Pass, Error> {
        let state = &self.view.state;
        let staged = state.make_dir(STAGED)?;
        let root = if self.is_new {
            Some(state.make_dir(TREE)?)
        } else {
            self.view.own_dir()?
        };
        let root = root.ok_or_else(|| self.view.parent.error(&self.view.name, "open", Errno::NOENT))?;
        let mut tree = Tree::new(root);
        let (journal, is_of_this_boot) = Journal::read(state)?;
        let earlier = Earlier {
            manifest: self.manifest,
            journal: &journal,
            is_doubtful: !is_of_this_boot,
            verify: wish.verify,
        };
        let plan = Plan::make(self.layout, &earlier, &mut tree, &staged)?;
        self.forget_others(&plan, &staged)?;
        self.check_room(&plan, wish, &staged)?;
        if plan.is_nothing() && !self.is_new {
            self.make_directories(&mut tree)?;
            self.view.sweep()?;
            return Ok(Pass::Done(self.outcome(&plan, &Fetched::default(), (0, 0))));
        }
        // What an earlier attempt published is only known to its journal until there is a manifest: it goes on in the new one.
        let known: Vec<Record> = plan.kept.iter().chain(&plan.staged).chain(&plan.vanished).cloned().collect();
        let journal = Journal::begin(state, self.address, &known)?;
        let (bytes, objects) = plan.missing();
        tell(Event::Missing { bytes, objects });
        let unfinished = |error| Error::Unfinished(Box::new(error));
        let fetched = fetch::fetch(store, &plan.tasks, &staged, &journal, &|bytes| tell(Event::Fetched(bytes))).map_err(unfinished)?;
        if let Some(key) = fetched.changed {
            return Ok(Pass::Changed(key));
        }
        let removed = self.publish(&plan, &fetched, &staged, &mut tree).map_err(unfinished)?;
        Ok(Pass::Done(self.outcome(&plan, &fetched, removed)))
    }

    /// Removes what an earlier attempt has staged and this one does not want: it would take the room.
    fn forget_others(&self, plan: &Plan<'_>, staged: &Dir) -> Result<(), Error> {
        let wanted: BTreeSet<String> = plan
            .staged
            .iter()
            .filter_map(|record| Some(crate::record::staged_name(&record.path, self.layout.files.get(&record.path)?)))
            .collect();
        for name in staged.names()? {
            if !wanted.contains(&name) {
                staged.remove(&name)?;
            }
        }
        Ok(())
    }

    fn check_room(&self, plan: &Plan<'_>, wish: &Wish, staged: &Dir) -> Result<(), Error> {
        let dir = self.view.path.display();
        let all = bytes_of(self.layout.files.values());
        if let Some(most) = wish.bytes_max.filter(|most| all > *most) {
            return Err(Error::Input(format!(
                "{} has {all} bytes, more than the {most} that {dir} may have; give it more, or name a longer prefix",
                self.address
            )));
        }
        // New versions lie beside the old ones until all are there.
        let blocks = |bytes: u64| bytes.div_ceil(limits::BLOCK_BYTES).saturating_mul(limits::BLOCK_BYTES);
        let sizes = plan.tasks.iter().map(|task| blocks(task.object.size));
        let bytes = sizes.fold(0, u64::saturating_add);
        let (room, inodes) = staged.room()?;
        if bytes > room || plan.tasks.len() as u64 > inodes {
            return Err(Error::Input(format!(
                "{dir} has room for {room} bytes in {inodes} files, with {} % of its disk kept free, and {} needs {bytes} in {}; \
                 name a directory on a larger disk, or a longer prefix",
                limits::FLOOR_PERCENT,
                self.address,
                plan.tasks.len()
            )));
        }
        Ok(())
    }

    /// Gives everything its name. Gives how many files went, and how many stayed that should have gone.
    fn publish(&self, plan: &Plan<'_>, fetched: &Fetched, staged: &Dir, tree: &mut Tree) -> Result<(u64, u64), Error> {
        let (view, state) = (self.view, &self.view.state);
        // No name leads to bytes that a loss of power would take.
        staged.sync_all()?;
        let (mut removed, mut left) = (0, 0);
        for record in &plan.vanished {
            let is_known = self.manifest.and_then(|manifest| manifest.records.get(&record.path)) == Some(record);
            if remove(tree, record)? {
                removed += 1;
            } else if is_known && let Some((dir, name)) = tree.find(&record.path, false)? {
                left += u64::from(dir.stat(name)?.is_some());
            }
        }
        let had = self.manifest.map(|manifest| manifest.directories.clone()).unwrap_or_default();
        remove_directories(tree, plan.vanished.iter().map(|record| &record.path), &had)?;
        for record in plan.staged.iter().chain(&fetched.records) {
            let Some(object) = self.layout.files.get(&record.path) else {
                continue;
            };
            put(tree, staged, &crate::record::staged_name(&record.path, object), &record.path)?;
        }
        self.make_directories(tree)?;
        let all = plan.kept.iter().chain(&plan.staged).chain(&fetched.records);
        let manifest = Manifest {
            url: self.address.to_owned(),
            records: all.map(|record| (record.path.clone(), record.clone())).collect(),
            directories: self.layout.directories.clone(),
        };
        staged.sync_all()?;
        manifest.write(state)?;
        if self.is_new {
            // Over an empty directory, or none.
            let renamed = state.rename(TREE, &view.parent, &view.name);
            renamed.map_err(|errno| view.parent.error(&view.name, "put the view at", errno))?;
            view.parent.sync()?;
        }
        view.sweep()?;
        Ok((removed, left))
    }

    /// Directories that have an object of their own are there even when they are empty.
    fn make_directories(&self, tree: &mut Tree) -> Result<(), Error> {
        for path in self.layout.directories.iter().filter(|path| !path.is_empty()) {
            if let Some((dir, name)) = tree.find(path, true)? {
                dir.make_dir(name)?;
            }
        }
        Ok(())
    }

    fn outcome(&self, plan: &Plan<'_>, fetched: &Fetched, (removed, left): (u64, u64)) -> Outcome {
        let came = plan.staged.iter().chain(&fetched.records);
        Outcome {
            files: self.layout.files.len() as u64,
            bytes: bytes_of(self.layout.files.values()),
            fetched: came.clone().count() as u64,
            fetched_bytes: came.map(|record| record.size).sum(),
            removed,
            altered: if self.is_new { 0 } else { plan.altered },
            left,
            left_out: self.layout.left_out.clone(),
        }
    }
}

/// Moves a staged file to its path, in place of whatever has that name.
fn put(tree: &mut Tree, staged: &Dir, name: &str, path: &str) -> Result<(), Error> {
    let Some((dir, last)) = tree.find(path, true)? else { return Ok(()) };
    let renamed = match staged.rename(name, dir, last) {
        // A directory that was an object's, or that was left empty.
        Err(Errno::ISDIR) if dir.remove_dir(last)? => staged.rename(name, dir, last),
        answer => answer,
    };
    renamed.map_err(|errno| dir.error(last, "write", errno))
}

/// Removes a file of the view if it still is what was fetched; whether it went.
fn remove(tree: &mut Tree, record: &Record) -> Result<bool, Error> {
    let Some((dir, name)) = tree.find(&record.path, false)? else {
        return Ok(false);
    };
    let is_ours = dir
        .stat(name)?
        .is_some_and(|stat| (stat.size, stat.modified_ms) == (record.size, record.modified_ms));
    if is_ours {
        dir.remove(name)?;
    }
    Ok(is_ours)
}

/// Removes these directories, and those above these files, where they are empty now; the deepest first.
fn remove_directories<'a>(
    tree: &mut Tree,
    files: impl IntoIterator<Item = &'a String>,
    directories: &'a BTreeSet<String>,
) -> Result<(), Error> {
    let own = directories
        .iter()
        .filter(|path| !path.is_empty())
        .flat_map(|path| above(path).chain([&**path]));
    let all: BTreeSet<&str> = files.into_iter().flat_map(|path| above(path)).chain(own).collect();
    for path in all.iter().rev() {
        tree.forget();
        if let Some((dir, name)) = tree.find(path, false)? {
            dir.remove_dir(name)?;
        }
    }
    tree.forget();
    Ok(())
}

#[cfg(test)]
mod tests;
