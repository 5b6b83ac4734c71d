//! A *view*: a local mirror of a bucket, a directory whose files are the objects, each complete and of one version.
//! Programs read it through the kernel, without our help.
//!
//! Beside the view `DIR/NAME` is `DIR/.NAME.forebay-view`, private to its owner: `lock`; `manifest`, the contents of
//! the view; and during fetching `journal`, `staged/` and, for a view that was never complete, `tree/`. Fetched files
//! are staged. They get their names only when all are there and on the disk: a new view in one step, with its
//! directory; an existing one file by file, each in one step.

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
    disk::{self, Dir, DirectoryTree},
    fetch::{self, FetchedObjects},
    limits,
    names::{Odd, PathLayout, above},
    plan::{Earlier, FillPlan, bytes_of},
    record::{FileRecord, Journal, ViewManifest},
    store::Store,
};

const STAGED: &str = "staged";
const TREE: &str = "tree";

/// Progress, for a person to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewEvent {
    /// Number of objects listed so far.
    Listed(u64),
    /// Size of the objects that are about to be fetched.
    Missing {
        /// Number of bytes.
        bytes: u64,
        /// Number of objects.
        objects: u64,
    },
    /// Number of bytes received since the last event.
    Fetched(u64),
}

/// Receiver of events, called from several threads.
pub type Reporter<'a> = &'a (dyn Fn(ViewEvent) + Sync);

/// Limits and checks of a view.
#[derive(Clone, Copy, Debug, Default)]
pub struct FillOptions {
    /// Largest total size of all files, in bytes.
    pub bytes_max: Option<u64>,
    /// True to read all existing files and compare them with their checksums.
    pub verify: bool,
}

/// Result of filling a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FillReport {
    /// Number of files in the view.
    pub files: u64,
    /// Size of the files, in bytes.
    pub bytes: u64,
    /// Number of objects that were fetched, by this attempt or one that it continues.
    pub fetched: u64,
    /// Size of the fetched objects, in bytes.
    pub fetched_bytes: u64,
    /// Number of files that were removed, since their objects are gone.
    pub removed: u64,
    /// Number of files that were fetched again, since somebody else had altered or removed them.
    pub altered: u64,
    /// Number of files that stay although their objects are gone, since somebody else has altered them.
    pub left: u64,
    /// Objects without a place in a directory tree: number and one example for each reason.
    pub left_out: BTreeMap<Odd, (u64, String)>,
}

/// A view, complete or to be fetched, with its lock.
#[derive(Debug)]
pub struct View {
    path: PathBuf,
    parent: Dir,
    /// Name of the view in it.
    name: String,
    state: Dir,
    state_name: String,
    lock: OwnedFd,
}

impl View {
    /// Opens the view at `path` (absolute), which need not exist yet. Creates its own directory beside it if that is
    /// missing.
    ///
    /// # Errors
    /// [`Error::Input`]: the name is taken, or another user may have prepared the directory.
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

    /// Locks the view for this process alone; returns `false` if others use it.
    ///
    /// # Errors
    /// The file system has no locks, or the view was removed a moment ago.
    pub fn try_alone(&self) -> Result<bool, Error> {
        match flock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.check_is_there().map(|()| true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(self.state.error("lock", "lock", errno)),
        }
    }

    /// Locks the view as it is, together with others. If a process holds it alone, calls `waiting` and waits for it. A
    /// process that holds the view alone downgrades its lock.
    ///
    /// # Errors
    /// Those of [`View::try_alone`].
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

    /// Returns whether the view is complete, and of this address.
    ///
    /// # Errors
    /// [`Error::Input`]: it is a view of another address, the name is taken, or its directory may belong to another
    /// user.
    pub fn is_whole_of(&self, address: &str) -> Result<bool, Error> {
        let Some(url) = ViewManifest::url(&self.state)? else {
            return Ok(false);
        };
        self.check_url(&url, address)?;
        Ok(self.state.dir(TREE)?.is_none() && self.own_dir()?.is_some())
    }

    /// Returns the directory of a view that was complete, if it exists and belongs to the user.
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

    /// Makes the view equal to what the store lists now. The caller must hold it alone.
    ///
    /// # Errors
    /// [`Error::Input`] and others: nothing has changed. [`Error::Unfinished`]: a part is staged.
    pub fn fill(&self, store: &Store, wish: &FillOptions, tell: Reporter<'_>) -> Result<FillReport, Error> {
        let filled = self.fill_alone(store, wish, tell);
        if filled.is_err() {
            // A refusal leaves nothing behind.
            let _ = self.tidy();
        }
        filled
    }

    fn fill_alone(&self, store: &Store, wish: &FillOptions, tell: Reporter<'_>) -> Result<FillReport, Error> {
        let address = store.address().to_string();
        let manifest = ViewManifest::read(&self.state)?;
        if let Some(manifest) = &manifest {
            self.check_url(&manifest.url, &address)?;
        }
        // A view that was never complete is built beside its place.
        let there = self.parent.dir(&self.name)?;
        let is_new = manifest.is_none() || there.is_none() || self.state.dir(TREE)?.is_some();
        // Our own directory replaces an empty one, whoever made it; the contents of a view stay.
        if !is_new {
            self.own_dir()?;
        }
        if is_new
            && let Some(there) = &there
            && !there.is_empty()?
        {
            return Err(Error::Input(format!(
                "{} is not empty, and not a view; name an empty directory, or a new one",
                self.path.display()
            )));
        }
        let mut pass = 1;
        loop {
            let objects = store.list(&|count| tell(ViewEvent::Listed(count)))?;
            let layout = PathLayout::of(objects, store.address().prefix(), self.path.as_os_str().len());
            if layout.files.is_empty() {
                return Err(Error::Input(format!("{address} has no object that can be a file")));
            }
            let filling = ViewPass {
                view: self,
                layout: &layout,
                manifest: manifest.as_ref(),
                address: &address,
                is_new,
            };
            match filling.run(store, wish, tell)? {
                PassResult::Done(outcome) => return Ok(outcome),
                PassResult::Changed(key) if pass == limits::PASSES_MAX => {
                    let why = format!("it changed after it was listed, {pass} times in a row; try again when nobody writes there");
                    let object = store.address().object(&key);
                    return Err(Error::Unfinished(Box::new(Error::Store { object, why })));
                }
                PassResult::Changed(_) => pass += 1,
            }
        }
    }

    /// Removes the view: the fetched files, and its directory beside it. Files that somebody else has put there or
    /// altered stay. The caller must hold it alone. Returns the number and bytes of the removed files, and whether any
    /// file stayed.
    ///
    /// # Errors
    /// [`Error::Input`]: there is no view.
    pub fn remove(self) -> Result<(u64, u64, bool), Error> {
        let manifest = ViewManifest::read(&self.state)?;
        let (mut files, mut bytes) = (0, 0);
        let mut stays = false;
        if let (Some(manifest), Some(dir)) = (&manifest, self.parent.dir(&self.name)?) {
            let mut tree = DirectoryTree::new(dir);
            for record in manifest.records.values() {
                if remove(&mut tree, record)? {
                    files += 1;
                    bytes += record.size;
                }
            }
            remove_directories(&mut tree, manifest.records.keys(), &manifest.directories)?;
            stays = !self.parent.remove_dir(&self.name)?;
        }
        ViewManifest::remove(&self.state)?;
        self.sweep()?;
        self.state.remove("lock")?;
        self.parent.remove_dir(&self.state_name)?;
        Ok((files, bytes, stays))
    }

    /// Returns whether there is a view, or the beginning of one, at `path`. Creates nothing.
    pub fn exists(path: &Path) -> bool {
        let name = path.file_name().map(OsStr::as_bytes).map(String::from_utf8_lossy);
        name.is_some_and(|name| path.with_file_name(format!(".{name}.forebay-view")).is_dir())
    }

    /// Removes the directory beside a view that has no files.
    fn tidy(&self) -> Result<(), Error> {
        let is_bare = ViewManifest::url(&self.state)?.is_none() && self.state.remove_dir(STAGED)? && self.state.remove_dir(TREE)?;
        if is_bare {
            self.sweep()?;
            self.state.remove("lock")?;
            self.parent.remove_dir(&self.state_name)?;
        }
        Ok(())
    }

    /// Removes files that were only needed during fetching.
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
        // Private to us, and every name in it is ours.
        match std::fs::remove_dir_all(self.state.path.join(TREE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::disk(&self.state.path.join(TREE), "remove", error)),
            _ => Ok(()),
        }
    }
}

/// One pass: a listing, and the fetching of its objects.
struct ViewPass<'a> {
    view: &'a View,
    layout: &'a PathLayout,
    manifest: Option<&'a ViewManifest>,
    address: &'a str,
    is_new: bool,
}

/// Result of one pass.
enum PassResult {
    Done(FillReport),
    /// This object, perhaps among others, changed meanwhile: the bucket must be listed again.
    Changed(String),
}

impl ViewPass<'_> {
    fn run(&self, store: &Store, wish: &FillOptions, tell: Reporter<'_>) -> Result<PassResult, Error> {
        let state = &self.view.state;
        let staged = state.make_dir(STAGED)?;
        let root = if self.is_new {
            Some(state.make_dir(TREE)?)
        } else {
            self.view.own_dir()?
        };
        let root = root.ok_or_else(|| self.view.parent.error(&self.view.name, "open", Errno::NOENT))?;
        let mut tree = DirectoryTree::new(root);
        let (journal, is_of_this_boot) = Journal::read(state)?;
        let earlier = Earlier {
            manifest: self.manifest,
            journal: &journal,
            is_doubtful: !is_of_this_boot,
            verify: wish.verify,
        };
        let plan = FillPlan::make(self.layout, &earlier, &mut tree, &staged)?;
        self.forget_others(&plan, &staged)?;
        self.check_room(&plan, wish, &staged)?;
        if plan.is_nothing() && !self.is_new {
            self.make_directories(&mut tree)?;
            self.view.sweep()?;
            return Ok(PassResult::Done(self.outcome(&plan, &FetchedObjects::default(), (0, 0))));
        }
        // Files that an earlier attempt has named are only in its journal until there is a manifest, so the new journal
        // has them, too.
        let known: Vec<FileRecord> = plan.kept.iter().chain(&plan.staged).chain(&plan.vanished).cloned().collect();
        let journal = Journal::begin(state, self.address, &known)?;
        let (bytes, objects) = plan.missing();
        tell(ViewEvent::Missing { bytes, objects });
        let unfinished = |error| Error::Unfinished(Box::new(error));
        let fetched = fetch::fetch(store, &plan.tasks, &staged, &journal, &|bytes| tell(ViewEvent::Fetched(bytes))).map_err(unfinished)?;
        if let Some(key) = fetched.changed {
            return Ok(PassResult::Changed(key));
        }
        let removed = self.publish(&plan, &fetched, &staged, &mut tree).map_err(unfinished)?;
        Ok(PassResult::Done(self.outcome(&plan, &fetched, removed)))
    }

    /// Removes staged files of an earlier attempt that this one does not need, for their room.
    fn forget_others(&self, plan: &FillPlan<'_>, staged: &Dir) -> Result<(), Error> {
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

    fn check_room(&self, plan: &FillPlan<'_>, wish: &FillOptions, staged: &Dir) -> Result<(), Error> {
        let dir = self.view.path.display();
        let all = bytes_of(self.layout.files.values());
        if let Some(most) = wish.bytes_max.filter(|most| all > *most) {
            return Err(Error::Input(format!(
                "{} has {all} bytes, more than the {most} that {dir} may have; give it more, or name a longer prefix",
                self.address
            )));
        }
        // New versions stay beside the old ones until all are there.
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

    /// Gives all files their names. Returns the number of removed files, and of those that should have been removed and
    /// stay.
    fn publish(&self, plan: &FillPlan<'_>, fetched: &FetchedObjects, staged: &Dir, tree: &mut DirectoryTree) -> Result<(u64, u64), Error> {
        let (view, state) = (self.view, &self.view.state);
        // After a loss of power every name must still lead to its bytes.
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
        let manifest = ViewManifest {
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

    /// Creates the directories that have an object of their own, even if they are empty.
    fn make_directories(&self, tree: &mut DirectoryTree) -> Result<(), Error> {
        for path in self.layout.directories.iter().filter(|path| !path.is_empty()) {
            if let Some((dir, name)) = tree.find(path, true)? {
                dir.make_dir(name)?;
            }
        }
        Ok(())
    }

    fn outcome(&self, plan: &FillPlan<'_>, fetched: &FetchedObjects, (removed, left): (u64, u64)) -> FillReport {
        let came = plan.staged.iter().chain(&fetched.records);
        FillReport {
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

/// Moves a staged file to its path, and replaces what has that name.
fn put(tree: &mut DirectoryTree, staged: &Dir, name: &str, path: &str) -> Result<(), Error> {
    let Some((dir, last)) = tree.find(path, true)? else { return Ok(()) };
    let renamed = match staged.rename(name, dir, last) {
        // A directory that was an object's, or that was left empty.
        Err(Errno::ISDIR) if dir.remove_dir(last)? => staged.rename(name, dir, last),
        answer => answer,
    };
    renamed.map_err(|errno| dir.error(last, "write", errno))
}

/// Removes a file of the view if it is still the fetched one. Returns whether it did.
fn remove(tree: &mut DirectoryTree, record: &FileRecord) -> Result<bool, Error> {
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

/// Removes these directories, and those above these files, if they are empty now; the deepest first.
fn remove_directories<'a>(
    tree: &mut DirectoryTree,
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
