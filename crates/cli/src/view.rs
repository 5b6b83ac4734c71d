//! `forebay view`, and `forebay run --view`: what an object store holds, as a directory of whole files.

use std::{
    ffi::OsStr,
    fmt::{self, Write as _},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use forebay_contract::Freshness;
use forebay_objects::{Address, Error, FillOptions, FillReport, Store, StoreAccess, View, ViewEvent};
use forebay_settings::{
    config::{Config, ViewWish, is_off},
    environment::Environment,
    mounts::{FsKind, Mounts, kind_of},
    places::{anybody_may_rename, writable},
    size::parse_size,
    text,
    user_error::UserError,
};

use crate::{args::ViewArgs, progress::WorkProgress, tell};

/// Fetching ended early, and can go on.
const EXIT_UNFINISHED: u8 = 1;
/// A listing that takes long is told of each time so many more objects were seen.
const LISTED_TOLD: u64 = 100_000;
/// Between two tries to have a view that others wait for, too.
const ANOTHER_TRY: Duration = Duration::from_millis(50);

/// Fetches, or brings up to date, or removes; gives what to print.
///
/// # Errors
/// Bad input; and where fetching ended early, with the status that says so.
pub fn view(args: &ViewArgs, environment: &Environment) -> Result<String, UserError> {
    if let Some(dir) = &args.remove {
        return remove(dir, environment);
    }
    let (Some(url), Some(dir)) = (&args.url, &args.dir) else {
        return Err(UserError::bad_input(
            "there is nothing to fetch: forebay view s3://BUCKET/PREFIX DIR",
        ));
    };
    if is_off(environment)? {
        return Err(UserError::bad_input("FOREBAY=off is set, so nothing can be fetched; unset it"));
    }
    let parsed_size = args.size.as_ref().map(|size| parse_size("--size", &size.to_string_lossy()));
    let wish = FillOptions {
        bytes_max: parsed_size.transpose()?,
        verify: args.verify,
    };
    let asked = ViewWish {
        address: url.parse().map_err(|error: Error| UserError::bad_input(error))?,
        dir: environment.make_absolute(dir),
    };
    let filling = Prepared::of(&asked, environment)?.open(args.quiet)?;
    if !filling.view.try_alone().map_err(refusal)? {
        return Err(UserError::bad_input(format_args!(
            "{} is used by a run, or is being fetched by another process; try again when that has ended",
            asked.dir.display()
        )));
    }
    let outcome = filling.fill(&wish)?;
    Ok(if args.quiet {
        String::new()
    } else {
        summary(&asked, &outcome) + "\n"
    })
}

/// Fills all views of a run. They stay as they are while what is given back lives.
///
/// # Errors
/// Whatever is wrong with one of them: then nothing is to run.
pub fn fill_all(config: &Config, environment: &Environment) -> Result<Vec<View>, UserError> {
    let views = &config.views;
    let quiet = config.quiet.value;
    for (at, wish) in views.value.iter().enumerate() {
        let overlaps = |other: &ViewWish| other.dir.starts_with(&wish.dir) || wish.dir.starts_with(&other.dir);
        if let Some(other) = views.value.iter().take(at).find(|other| overlaps(other)) {
            let (one, two) = (other.dir.display(), wish.dir.display());
            return Err(UserError::bad_input(format_args!(
                "{}: {two} and {one} lie in each other; name directories beside each other",
                views.origin
            )));
        }
    }
    let named = |refusal: UserError| UserError::with_status(refusal.status, format_args!("{}: {refusal}", views.origin));
    // All of them are looked at before the first is fetched.
    let prepared = views
        .value
        .iter()
        .map(|wish| Prepared::of(wish, environment))
        .collect::<Result<Vec<_>, _>>();
    let mut held = Vec::new();
    for (prepared, wish) in prepared.map_err(named)?.into_iter().zip(&views.value) {
        let filling = prepared.open(quiet).map_err(named)?;
        match filling.fill_and_share(config.freshness.value).map_err(named)? {
            Some(outcome) => filling.say(format_args!("{}", summary(wish, &outcome))),
            None => filling.say(format_args!("{wish}: taken as it is")),
        }
        held.push(filling.view);
    }
    Ok(held)
}

/// A view that can be filled, as far as is known without asking the store. Nothing was made yet.
struct Prepared {
    place: PathBuf,
    store: Store,
}

impl Prepared {
    fn of(wish: &ViewWish, environment: &Environment) -> Result<Self, UserError> {
        let variables = |name: &str| environment.get(name).and_then(OsStr::to_str).map(str::to_owned);
        let access = StoreAccess::find(&wish.address, &variables).map_err(refusal)?;
        Ok(Self {
            place: place_of(&wish.dir, &Mounts::read())?,
            store: Store::new(wish.address.clone(), access),
        })
    }

    fn open(self, quiet: bool) -> Result<ViewFill, UserError> {
        Ok(ViewFill {
            view: View::open(&self.place).map_err(refusal)?,
            store: self.store,
            quiet,
        })
    }
}

struct ViewFill {
    view: View,
    store: Store,
    quiet: bool,
}

impl ViewFill {
    fn fill(&self, wish: &FillOptions) -> Result<FillReport, UserError> {
        let shown = Shown {
            quiet: self.quiet,
            address: self.store.address(),
            progress: Mutex::default(),
        };
        let outcome = self.view.fill(&self.store, wish, &|event| shown.see(event)).map_err(refusal)?;
        // Its last line, before ours.
        drop(shown);
        for (odd, (count, one)) in &outcome.left_out {
            let objects = text::counted(*count, "object was left out: it", "objects were left out: each");
            self.say(format_args!("{objects} {} ({one})", odd.words()));
        }
        Ok(outcome)
    }

    /// Fills the view, or waits until another process has, and holds it. `None`: it was taken as it is.
    fn fill_and_share(&self, freshness: Freshness) -> Result<Option<FillReport>, UserError> {
        let address = self.store.address().to_string();
        let is_whole = || self.view.is_whole_of(&address).map_err(refusal);
        loop {
            if self.view.try_alone().map_err(refusal)? {
                let was_whole = is_whole()?;
                // With `immutable` the user guarantees that the source does not change.
                let outcome = if was_whole && freshness == Freshness::Immutable {
                    None
                } else {
                    let mend = |refusal: UserError| {
                        let rest = if was_whole {
                            "; with --freshness immutable the view is taken as it is"
                        } else {
                            ""
                        };
                        UserError::bad_input(format_args!("{refusal}{rest}"))
                    };
                    Some(self.fill(&FillOptions::default()).map_err(mend)?)
                };
                self.view.share(&|| {}).map_err(refusal)?;
                if is_whole()? {
                    return Ok(outcome);
                }
                continue;
            }
            self.view
                .share(&|| self.say(format_args!("{address}: another process fetches it; waiting")))
                .map_err(refusal)?;
            if is_whole()? {
                return Ok(None);
            }
            // Whoever fetched it did not come to the end. Another one that waited may be faster.
            thread::sleep(ANOTHER_TRY);
        }
    }

    fn say(&self, line: fmt::Arguments<'_>) {
        if !self.quiet {
            tell(&format!("forebay: {line}\n"));
        }
    }
}

/// Progress that a person sees during the fetch.
struct Shown<'a> {
    quiet: bool,
    address: &'a Address,
    progress: Mutex<Option<WorkProgress>>,
}

impl Shown<'_> {
    fn see(&self, event: ViewEvent) {
        if self.quiet {
            return;
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            ViewEvent::Listed(count) => {
                if count >= LISTED_TOLD && count % LISTED_TOLD < 1000 {
                    tell(&format!("forebay: {}: {} objects listed\n", self.address, text::count(count)));
                }
            }
            ViewEvent::Missing { bytes, objects } => {
                let bar = WorkProgress::new("fetching", bytes);
                bar.note(&format!(
                    "of {} in {}",
                    text::bytes(bytes),
                    text::counted(objects, "object", "objects")
                ));
                *progress = Some(bar);
            }
            ViewEvent::Fetched(bytes) => {
                if let Some(bar) = &*progress {
                    bar.advance(bytes);
                    bar.refresh();
                }
            }
        }
    }
}

/// The place of a view: in a directory that is there, on a disk of this machine, and that nobody else can rename
/// things in.
fn place_of(dir: &Path, mounts: &Mounts) -> Result<PathBuf, UserError> {
    let shown = dir.display();
    let refuse = |why: String| UserError::bad_input(format_args!("{shown} {why}"));
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(refuse("can't be a view; name a directory in another one".into()));
    };
    let above = above.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refuse(format!("can't be made: its parent does not exist; mkdir -p {}", above.display())),
        _ => refuse(format!("can't be made: {error}; name a directory on a local disk")),
    })?;
    if !above.is_dir() {
        return Err(refuse(format!("can't be made: {} is not a directory", above.display())));
    }
    match dir.symlink_metadata() {
        Ok(meta) if !meta.is_dir() => return Err(refuse("is a link or a file; name a directory".into())),
        _ => {}
    }
    let place = above.join(name);
    // What is empty may be a mount of its own.
    match kind_of(if place.is_dir() { &place } else { &above }, mounts) {
        (FsKind::Network, fs_type) => {
            return Err(refuse(format!(
                "is on a network file system ({fs_type}); name a directory on a local disk"
            )));
        }
        (FsKind::Kernel, fs_type) => {
            return Err(refuse(format!(
                "is on {fs_type}, which holds no files; name a directory on a local disk"
            )));
        }
        (FsKind::Memory | FsKind::Local, _) => {}
    }
    writable(&above).map_err(|why| {
        refuse(format!(
            "can't be made: {}: {why}; name a directory that you can write",
            above.display()
        ))
    })?;
    if anybody_may_rename(&above) {
        return Err(refuse(format!(
            "lies in a directory that everybody can empty: set its sticky bit (chmod +t {}), or name another one",
            above.display()
        )));
    }
    Ok(place)
}

fn remove(dir: &Path, environment: &Environment) -> Result<String, UserError> {
    let dir = environment.make_absolute(dir);
    let shown = dir.display();
    let real = dir.parent().and_then(|above| above.canonicalize().ok()).zip(dir.file_name());
    let place = real.map(|(above, name)| above.join(name)).filter(|place| View::exists(place));
    let Some(place) = place else {
        return Err(UserError::bad_input(format_args!(
            "{shown} is not a view; name one that `forebay view` or `forebay run --view` made"
        )));
    };
    let view = View::open(&place).map_err(refusal)?;
    if !view.try_alone().map_err(refusal)? {
        return Err(UserError::bad_input(format_args!(
            "{shown} is used by a run, or is being fetched; remove it when that has ended"
        )));
    }
    let (files, bytes, stays) = view.remove().map_err(refusal)?;
    let rest = if stays { "; what else lies there was left" } else { "" };
    Ok(format!(
        "{shown}: {} removed, {} freed{rest}\n",
        text::counted(files, "file", "files"),
        text::bytes(bytes)
    ))
}

fn refusal(error: Error) -> UserError {
    if error.is_unfinished() {
        return UserError::with_status(EXIT_UNFINISHED, error);
    }
    UserError::bad_input(error)
}

/// Returns the result as one line.
fn summary(wish: &ViewWish, outcome: &FillReport) -> String {
    let mut line = format!(
        "{} at {}: {}, {}",
        wish.address,
        wish.dir.display(),
        text::counted(outcome.files, "file", "files"),
        text::bytes(outcome.bytes)
    );
    let mut add = |number: u64, words: &str| {
        if number > 0 {
            let _ = write!(line, "; {} {words}", text::count(number));
        }
    };
    add(outcome.fetched, &format!("fetched ({})", text::bytes(outcome.fetched_bytes)));
    add(outcome.altered, "of them because they were altered or removed here");
    add(outcome.removed, "removed: their objects are gone");
    add(outcome.left, "left though their objects are gone: they were altered here");
    add(outcome.left_out.values().map(|(count, _)| count).sum(), "objects left out");
    line
}
