//! `forebay view`, and `forebay run --view`: what an object store holds, as a directory of whole files.

use std::{
    ffi::{OsStr, OsString},
    fmt::{self, Write as _},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use forebay_agent::tiering::protocol::RunFreshness;
use forebay_objects::{Access, Address, Error, Event, Outcome, Scheme, Store, View, Wish};

use crate::{
    args::ViewArgs,
    config::{Config, Origin, is_off},
    environment::Environment,
    mounts::{Kind, Mounts},
    progress::Progress,
    refusal::Refusal,
    run::tell,
    size::parse_size,
    text,
    tiers::{anybody_may_rename, kind_of, writable},
};

/// Fetching ended early, and can go on.
const EXIT_UNFINISHED: u8 = 1;
/// A listing that takes long is told of each time so many more objects were seen.
const LISTED_TOLD: u64 = 100_000;
/// Between two tries to have a view that others wait for, too.
const ANOTHER_TRY: Duration = Duration::from_millis(50);

/// A view as it was asked for; whether it can be is seen when it is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewWish {
    /// What is fetched.
    pub address: Address,
    /// Where to: an absolute path.
    pub dir: PathBuf,
}

impl fmt::Display for ViewWish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.address, self.dir.display())
    }
}

/// Reads `s3://BUCKET/PREFIX=DIR`, or the same with `gs://` or `az://`. A prefix may have an equals sign in it (`day=1`), so the last one counts.
///
/// # Errors
/// One line that names the mend.
pub fn parse(origin: &Origin, environment: &Environment, text: &OsStr) -> Result<ViewWish, Refusal> {
    let shown = text.to_string_lossy();
    let form = Scheme::of(shown.as_bytes()).unwrap_or(Scheme::S3).bucket_form();
    let refuse = |why: &str| Refusal::bad_input(format_args!("{origin}: {shown} {why}; write {form}/PREFIX=DIR"));
    let text = text.to_str().ok_or_else(|| refuse("is no text"))?;
    let Some((address, dir)) = text.rsplit_once('=') else {
        // An address that is none is the greater mistake.
        address_of(origin, text)?;
        return Err(refuse("names no directory"));
    };
    let address = address_of(origin, address)?;
    if dir.is_empty() {
        return Err(refuse("names no directory"));
    }
    Ok(ViewWish {
        address,
        dir: environment.make_absolute(Path::new(dir)),
    })
}

fn address_of(origin: &Origin, text: &str) -> Result<Address, Refusal> {
    text.parse()
        .map_err(|error: Error| Refusal::bad_input(format_args!("{origin}: {error}")))
}

/// The views of a variable, with a colon between two of them. Addresses have colons, too: one that counts has an address after it.
pub fn split(text: &OsStr) -> Vec<OsString> {
    // What is no text is no view either, and is refused as one.
    let Some(text) = text.to_str() else { return vec![text.to_owned()] };
    let begins = |at: usize| Scheme::of(&text.as_bytes()[at + 1..]).is_some();
    let mut views = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices(':').filter(|(at, _)| begins(*at)) {
        views.push(&text[from..at]);
        from = at + 1;
    }
    views.push(&text[from..]);
    views.into_iter().filter(|view| !view.is_empty()).map(OsString::from).collect()
}

/// Fetches, or brings up to date, or removes; gives what to print.
///
/// # Errors
/// Bad input; and where fetching ended early, with the status that says so.
pub fn view(args: &ViewArgs, environment: &Environment) -> Result<String, Refusal> {
    if let Some(dir) = &args.remove {
        return remove(dir, environment);
    }
    let (Some(url), Some(dir)) = (&args.url, &args.dir) else {
        return Err(Refusal::bad_input("there is nothing to fetch: forebay view s3://BUCKET/PREFIX DIR"));
    };
    if is_off(environment)? {
        return Err(Refusal::bad_input("FOREBAY=off is set, so nothing can be fetched; unset it"));
    }
    let parsed_size = args.size.as_ref().map(|size| parse_size("--size", &size.to_string_lossy()));
    let wish = Wish {
        bytes_max: parsed_size.transpose()?,
        verify: args.verify,
    };
    let asked = ViewWish {
        address: url.parse().map_err(|error: Error| Refusal::bad_input(error))?,
        dir: environment.make_absolute(dir),
    };
    let filling = Prepared::of(&asked, environment)?.open(args.quiet)?;
    if !filling.view.try_alone().map_err(refusal)? {
        return Err(Refusal::bad_input(format_args!(
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
pub fn fill_all(config: &Config, environment: &Environment) -> Result<Vec<View>, Refusal> {
    let views = &config.views;
    let quiet = config.quiet.value;
    for (at, wish) in views.value.iter().enumerate() {
        let overlaps = |other: &ViewWish| other.dir.starts_with(&wish.dir) || wish.dir.starts_with(&other.dir);
        if let Some(other) = views.value.iter().take(at).find(|other| overlaps(other)) {
            let (one, two) = (other.dir.display(), wish.dir.display());
            return Err(Refusal::bad_input(format_args!(
                "{}: {two} and {one} lie in each other; name directories beside each other",
                views.origin
            )));
        }
    }
    let named = |refusal: Refusal| Refusal::with_status(refusal.status, format_args!("{}: {refusal}", views.origin));
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
    fn of(wish: &ViewWish, environment: &Environment) -> Result<Self, Refusal> {
        let variables = |name: &str| environment.get(name).and_then(OsStr::to_str).map(str::to_owned);
        let access = Access::find(&wish.address, &variables).map_err(refusal)?;
        Ok(Self {
            place: place_of(&wish.dir, &Mounts::read())?,
            store: Store::new(wish.address.clone(), access),
        })
    }

    fn open(self, quiet: bool) -> Result<Filling, Refusal> {
        Ok(Filling {
            view: View::open(&self.place).map_err(refusal)?,
            store: self.store,
            quiet,
        })
    }
}

struct Filling {
    view: View,
    store: Store,
    quiet: bool,
}

impl Filling {
    fn fill(&self, wish: &Wish) -> Result<Outcome, Refusal> {
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
    fn fill_and_share(&self, freshness: RunFreshness) -> Result<Option<Outcome>, Refusal> {
        let address = self.store.address().to_string();
        let is_whole = || self.view.is_whole_of(&address).map_err(refusal);
        loop {
            if self.view.try_alone().map_err(refusal)? {
                let was_whole = is_whole()?;
                // Who vouches for the source needs not to have it asked.
                let outcome = if was_whole && freshness == RunFreshness::Immutable {
                    None
                } else {
                    let mend = |refusal: Refusal| {
                        let rest = if was_whole {
                            "; with --freshness immutable the view is taken as it is"
                        } else {
                            ""
                        };
                        Refusal::bad_input(format_args!("{refusal}{rest}"))
                    };
                    Some(self.fill(&Wish::default()).map_err(mend)?)
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

/// What a person sees meanwhile.
struct Shown<'a> {
    quiet: bool,
    address: &'a Address,
    progress: Mutex<Option<Progress>>,
}

impl Shown<'_> {
    fn see(&self, event: Event) {
        if self.quiet {
            return;
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Listed(count) => {
                if count >= LISTED_TOLD && count % LISTED_TOLD < 1000 {
                    tell(&format!("forebay: {}: {} objects listed\n", self.address, text::count(count)));
                }
            }
            Event::Missing { bytes, objects } => {
                let bar = Progress::new("fetching", bytes);
                bar.note(&format!(
                    "of {} in {}",
                    text::bytes(bytes),
                    text::counted(objects, "object", "objects")
                ));
                *progress = Some(bar);
            }
            Event::Fetched(bytes) => {
                if let Some(bar) = &*progress {
                    bar.advance(bytes);
                    bar.refresh();
                }
            }
        }
    }
}

/// The place of a view: in a directory that is there, on a disk of this machine, and that nobody else can rename things in.
fn place_of(dir: &Path, mounts: &Mounts) -> Result<PathBuf, Refusal> {
    let shown = dir.display();
    let refuse = |why: String| Refusal::bad_input(format_args!("{shown} {why}"));
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(refuse("can't be a view; name a directory in another one".into()));
    };
    let above = above.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refuse(format!("can't be made: its parent does not exist; mkdir -p {}", above.display())),
        _ => refuse(format!("can't be made: {error}; name a directory on a local disk")),
    })?;
    if !above.is_dir() {
        return Err(refuse(format!("can't be made: {} is no directory", above.display())));
    }
    match dir.symlink_metadata() {
        Ok(meta) if !meta.is_dir() => return Err(refuse("is a link or a file; name a directory".into())),
        _ => {}
    }
    let place = above.join(name);
    // What is empty may be a mount of its own.
    match kind_of(if place.is_dir() { &place } else { &above }, mounts) {
        (Kind::Network, fs_type) => {
            return Err(refuse(format!(
                "is on a network file system ({fs_type}); name a directory on a local disk"
            )));
        }
        (Kind::Kernel, fs_type) => {
            return Err(refuse(format!(
                "is on {fs_type}, which holds no files; name a directory on a local disk"
            )));
        }
        (Kind::Memory | Kind::Local, _) => {}
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

fn remove(dir: &Path, environment: &Environment) -> Result<String, Refusal> {
    let dir = environment.make_absolute(dir);
    let shown = dir.display();
    let real = dir.parent().and_then(|above| above.canonicalize().ok()).zip(dir.file_name());
    let place = real.map(|(above, name)| above.join(name)).filter(|place| View::exists(place));
    let Some(place) = place else {
        return Err(Refusal::bad_input(format_args!(
            "{shown} is no view; name one that `forebay view` or `forebay run --view` made"
        )));
    };
    let view = View::open(&place).map_err(refusal)?;
    if !view.try_alone().map_err(refusal)? {
        return Err(Refusal::bad_input(format_args!(
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

fn refusal(error: Error) -> Refusal {
    if error.is_unfinished() {
        return Refusal::with_status(EXIT_UNFINISHED, error);
    }
    Refusal::bad_input(error)
}

/// What came of it, in one line.
fn summary(wish: &ViewWish, outcome: &Outcome) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_read() {
        let mut environment = Environment::default();
        environment.directory = Some("/here".into());
        let read = |text: &str| parse(&Origin::Flag("--view"), &environment, OsStr::new(text));
        for (text, address, dir) in [
            ("s3://b/p=/data", "s3://b/p", "/data"),
            ("s3://b=data/x/", "s3://b", "/here/data/x"),
            ("s3://b/day=1/=/data", "s3://b/day=1", "/data"),
            ("gs://b/p=/data", "gs://b/p", "/data"),
            ("az://b/p=/data", "az://b/p", "/data"),
        ] {
            let wish = read(text).unwrap();
            assert_eq!((&*wish.address.to_string(), &*wish.dir), (address, Path::new(dir)), "{text}");
        }
        for text in [
            "",
            "s3://b/p",
            "s3://b=",
            "/data",
            "b=/data",
            "gcs://b=/data",
            "s3://b/../x=/data",
            "=/data",
        ] {
            let line = read(text).unwrap_err().to_string();
            assert!(line.starts_with("--view: ") && line.contains("write s3://BUCKET/PREFIX"), "{line}");
        }
        for (text, form) in [("gs://b/p", "gs://BUCKET/PREFIX=DIR"), ("az://b=", "az://CONTAINER/PREFIX=DIR")] {
            let line = read(text).unwrap_err().to_string();
            assert!(line.ends_with(&format!("names no directory; write {form}")), "{line}");
        }
    }

    #[test]
    fn a_variable_has_several() {
        let pieces = |text: &str| {
            split(OsStr::new(text))
                .into_iter()
                .map(|piece| piece.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(pieces("s3://a/p=/x"), ["s3://a/p=/x"]);
        assert_eq!(pieces("s3://a=/x:s3://b/q=/y:z"), ["s3://a=/x", "s3://b/q=/y:z"]);
        assert_eq!(pieces("/x:s3://b=/y"), ["/x", "s3://b=/y"]);
        assert_eq!(
            pieces("gs://a=/x:az://b/q=/y:z:s3://c=/w:"),
            ["gs://a=/x", "az://b/q=/y:z", "s3://c=/w:"]
        );
        assert_eq!(pieces(":gs://a=/x"), ["gs://a=/x"]);
    }
}
