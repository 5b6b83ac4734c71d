//! `forebay ls`: what is cached. Reads the catalogues, and asks the agent of loaders what it holds in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt::Write as _,
    io::{self, Write as _},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use forebay_agent::{
    samples::{self, status::SamplesStatus},
    tiering::ram,
};
use forebay_settings::{
    config::{Config, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places, text, tiers,
    user_error::UserError,
};
use forebay_store::{CatalogueCopy, CatalogueItem, Secret};
use rustix::process::geteuid;
use serde_json::json;

use crate::{args::LsArgs, inspect::samples_of};

/// Lists; gives what to print.
///
/// # Errors
/// A tier that does not exist, or can't be read.
pub fn ls(args: &LsArgs, environment: &Environment) -> Result<String, UserError> {
    let config = Config::resolve(&WrittenSettings::default(), environment)?;
    let mounts = Mounts::read();
    let runtime_dir = places::runtime_dir(&config, environment, &mounts).value;
    let state_dir = places::state_dir(&config, environment, &runtime_dir).value;
    let named = tiers::directories_of(&args.tier, environment)?;
    let in_ram = tiers::distinct(ram::tiers_in(&runtime_dir));
    let dirs = tiers::distinct(if named.is_empty() {
        let mut all = tiers::everywhere(&config, environment, &mounts, &state_dir);
        all.extend(in_ram.iter().cloned());
        all
    } else {
        named
    });
    let below: Vec<PathBuf> = args.below.iter().map(|path| environment.make_absolute(path)).collect();
    let mut listing = Listing::new(args, &below, &in_ram);
    if let Some(secret) = Secret::load(&state_dir).map_err(UserError::bad_input)? {
        for dir in &dirs {
            let mut each = |found: CatalogueItem<'_>| listing.take(dir, &found);
            match forebay_store::list(dir, geteuid().as_raw(), &secret, &mut each) {
                Err(error) if args.tier.is_empty() => drop(writeln!(io::stderr(), "forebay: {error}")),
                listed => drop(listed.map_err(UserError::bad_input)?),
            }
        }
    }
    if below.is_empty() && !args.json {
        let running = samples_of(&runtime_dir).filter(|_| args.tier.is_empty());
        listing.take_samples(&dirs, running.as_ref());
    }
    Ok(listing.finish(dirs.len()))
}

/// The copies below one directory.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    files: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Listing<'a> {
    args: &'a LsArgs,
    below: &'a [PathBuf],
    /// Tiers in memory.
    in_ram: &'a [PathBuf],
    /// Sums by tier, then by directory of the source.
    sums: BTreeMap<(PathBuf, PathBuf), Sum>,
    tiers: BTreeSet<PathBuf>,
    lines: String,
    all: Sum,
    /// Lines about the samples of loaders.
    samples: String,
}

impl<'a> Listing<'a> {
    fn new(args: &'a LsArgs, below: &'a [PathBuf], in_ram: &'a [PathBuf]) -> Self {
        Self {
            args,
            below,
            in_ram,
            sums: BTreeMap::new(),
            tiers: BTreeSet::new(),
            lines: String::new(),
            all: Sum::default(),
            samples: String::new(),
        }
    }

    fn take(&mut self, tier: &Path, found: &CatalogueItem<'_>) {
        // Another spelling of a copy takes no room.
        let CatalogueItem::Copy(copy) = found else { return };
        let dir = Path::new(OsStr::from_bytes(copy.dir));
        let file = dir.join(OsStr::from_bytes(copy.name));
        if !self.below.is_empty() && !self.below.iter().any(|place| file.starts_with(place)) {
            return;
        }
        let bytes = copy.identity.size;
        // A cached directory is not a file, and counts with the files that it lists.
        let (dir, files) = if copy.is_cached_directory() { (&*file, 0) } else { (dir, 1) };
        if self.args.json || self.args.long {
            if !copy.is_cached_directory() {
                let line = if self.args.json {
                    line_of(tier, &file, copy)
                } else {
                    format!("{:>12}  {}\n", text::count(bytes), text::of_path(&file))
                };
                self.lines.push_str(&line);
            }
        } else {
            let sum = self.sums.entry((tier.to_owned(), dir.to_owned())).or_default();
            sum.files += files;
            sum.bytes += bytes;
        }
        self.tiers.insert(tier.to_owned());
        self.all.files += files;
        self.all.bytes += bytes;
    }

    /// Adds the samples of loaders: on disks, of running loaders or left there, and in memory.
    fn take_samples(&mut self, dirs: &[PathBuf], running: Option<&SamplesStatus>) {
        let mut add = |bytes: u64, of: &str| {
            let _ = writeln!(self.samples, "{:>10}  {:>14}  {of}", text::bytes(bytes), "");
        };
        for dir in dirs {
            // A directory that is not private is not ours.
            if let Ok(Some(found)) = forebay_store::inspect(&samples::disk_dir(dir), geteuid().as_raw())
                && found.bytes > 0
            {
                add(found.bytes, &format!("samples of loaders, in {}", text::of_path(dir)));
            }
        }
        for loader in running.into_iter().flat_map(|samples| &samples.loaders) {
            let others = loader.totals.figures.nodes.saturating_sub(1);
            let shared = match others {
                0 => String::new(),
                others => format!(", shared with {}", text::counted(others, "other node", "other nodes")),
            };
            let name = text::of_path(loader.name.as_ref());
            add(loader.arena_bytes, &format!("memory of loader {name}{shared}"));
        }
    }

    fn finish(mut self, looked_at: usize) -> String {
        if self.args.json {
            return self.lines;
        }
        if self.tiers.is_empty() && !self.samples.is_empty() {
            return self.samples;
        }
        if self.tiers.is_empty() {
            let places = text::counted(looked_at as u64, "tier", "tiers");
            let below: Vec<_> = self.below.iter().map(|dir| text::of_path(dir)).collect();
            let below = if below.is_empty() {
                String::new()
            } else {
                format!(" below {}", below.join(", "))
            };
            return format!("nothing is cached{below} ({places} looked at; --tier DIR names another)\n");
        }
        for ((_, dir), sum) in &self.sums {
            let files = text::counted(sum.files, "file", "files");
            let _ = writeln!(self.lines, "{:>10}  {files:>14}  {}", text::bytes(sum.bytes), text::of_path(dir));
        }
        let tiers = self
            .tiers
            .iter()
            .map(|dir| {
                if self.in_ram.contains(dir) {
                    format!("RAM ({})", dir.display())
                } else {
                    dir.display().to_string()
                }
            })
            .collect::<Vec<_>>()
            .join(", ");
        let files = text::counted(self.all.files, "file", "files");
        let _ = writeln!(self.lines, "{:>10}  {files:>14}  in all, in {tiers}", text::bytes(self.all.bytes));
        self.lines + &self.samples
    }
}

fn line_of(tier: &Path, file: &Path, copy: &CatalogueCopy<'_>) -> String {
    let object = forebay_store::copy_path(tier, geteuid().as_raw(), copy.id);
    let line = json!({
        "file": file.to_string_lossy(), "bytes": copy.identity.size, "copy": object.to_string_lossy(), "tier": tier.to_string_lossy(),
        "checksum_xxh3_128": format!("{:032x}", copy.checksum), "copied_unix_s": copy.created_unix_s,
        "used_unix_s": copy.last_used_unix_s,
    });
    format!("{line}\n")
}
