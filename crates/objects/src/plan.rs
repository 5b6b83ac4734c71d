//! What of a listing is there already, what is staged, and what has to be fetched. Files are looked at; nothing is changed.

use std::collections::BTreeMap;

use crate::{
    Error,
    disk::{Dir, Stat, Tree},
    fetch::Task,
    names::Layout,
    record::{Manifest, Record, staged_name},
    store::Object,
};

/// What an earlier attempt has left.
#[derive(Debug)]
pub(crate) struct Earlier<'a> {
    /// What the view held when it was last whole.
    pub(crate) manifest: Option<&'a Manifest>,
    /// What was staged since, by its staged name.
    pub(crate) journal: &'a BTreeMap<String, Record>,
    /// Whether what was fetched since may never have come to the disk, so that its bytes are compared.
    pub(crate) is_doubtful: bool,
    /// Whether the bytes of all that is there are compared.
    pub(crate) verify: bool,
}

/// What is to be done.
#[derive(Debug, Default)]
pub(crate) struct Plan<'a> {
    /// In the view, and as listed.
    pub(crate) kept: Vec<Record>,
    /// Staged: only a name is missing.
    pub(crate) staged: Vec<Record>,
    /// To be fetched.
    pub(crate) tasks: Vec<Task<'a>>,
    /// What the view had, or an earlier attempt may have given its name, and the listing has not; of one path, what the view
    /// had comes last.
    pub(crate) vanished: Vec<Record>,
    /// Files that the view had, and that somebody else has altered or removed.
    pub(crate) altered: u64,
    /// Whether the directories that have an object of their own are those that the view had.
    pub(crate) has_same_directories: bool,
}

impl<'a> Plan<'a> {
    pub(crate) fn make(layout: &'a Layout, earlier: &Earlier<'_>, tree: &mut Tree, staged: &Dir) -> Result<Self, Error> {
        let mut plan = Self::default();
        for (path, object) in &layout.files {
            let name = staged_name(path, object);
            let noted = earlier.journal.get(&name);
            // What is still staged has not been given its name in the view: whatever has that name is another version.
            if let Some(record) = noted
                && is_whole(staged, &name, record, earlier.is_doubtful || earlier.verify)?
            {
                plan.staged.push(record.clone());
                continue;
            }
            let known = earlier.manifest.and_then(|manifest| manifest.records.get(path));
            let (record, compare) = match (known.filter(|record| record.is_of(object)), noted) {
                (Some(record), _) => (Some(record), earlier.verify),
                (None, noted) => (noted, earlier.is_doubtful || earlier.verify),
            };
            let kept = match (record, tree.find(path, false)?) {
                (Some(record), Some((dir, last))) if is_whole(dir, last, record, compare)? => Some(record),
                _ => None,
            };
            if let Some(record) = kept {
                plan.kept.push(record.clone());
            } else {
                plan.altered += u64::from(known.is_some_and(|record| record.is_of(object)));
                plan.tasks.push(Task { path, object, name });
            }
        }
        plan.has_same_directories = earlier.manifest.is_some_and(|manifest| manifest.directories == layout.directories);
        // An attempt that ended between the first name and the manifest has told only its journal.
        let had = |record: &Record| earlier.manifest.and_then(|manifest| manifest.records.get(&record.path)) == Some(record);
        let noted = earlier.journal.values().filter(|record| !had(record));
        let all = noted.chain(earlier.manifest.into_iter().flat_map(|manifest| manifest.records.values()));
        plan.vanished = all.filter(|record| !layout.files.contains_key(&record.path)).cloned().collect();
        Ok(plan)
    }

    /// Bytes and files that are to be fetched.
    pub(crate) fn missing(&self) -> (u64, u64) {
        (bytes_of(self.tasks.iter().map(|task| task.object)), self.tasks.len() as u64)
    }

    /// Whether the view is as it should be.
    pub(crate) fn is_nothing(&self) -> bool {
        self.tasks.is_empty() && self.staged.is_empty() && self.vanished.is_empty() && self.has_same_directories
    }
}

/// Whether a file is what was fetched, by size and time; and by its bytes, if asked.
fn is_whole(dir: &Dir, name: &str, record: &Record, compare: bool) -> Result<bool, Error> {
    let expected = Stat {
        size: record.size,
        modified_ms: record.modified_ms,
    };
    Ok(dir.stat(name)? == Some(expected) && (!compare || dir.checksum(name)? == record.checksum))
}

/// The bytes of all objects. A store may say anything of their sizes.
pub(crate) fn bytes_of<'a>(objects: impl Iterator<Item = &'a Object>) -> u64 {
    objects.fold(0, |sum, object| sum.saturating_add(object.size))
}
