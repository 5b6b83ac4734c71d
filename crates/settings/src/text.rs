//! Numbers, sizes and times in words.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    path::Path,
    time::{Duration, SystemTime},
};

pub use forebay_agent::host::text::bytes;
use forebay_contract::NotCached;
use jiff::Timestamp;

/// `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 file`, `2 files`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// `part` of `whole`; of nothing it is nothing.
#[expect(clippy::cast_precision_loss, reason = "for people to read, or to compare roughly")]
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// `66.7 %`; of nothing it is `0 %`. Only all is `100 %`, and only nothing `0 %`.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".into();
    }
    if part >= whole {
        return "100 %".into();
    }
    format!("{:.1} %", (ratio(part, whole) * 100.0).clamp(0.1, 99.9))
}

/// `2 min 31 s`, `3.2 s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Describes times in seconds: `median 0.38 ms, 99th percentile 12 ms`.
pub fn median_and_p99(median_s: f64, p99_s: f64) -> String {
    format!("median {}, 99th percentile {}", time_text(median_s), time_text(p99_s))
}

/// Returns a time in UTC, such as `2026-01-02T03:04:05.678Z`.
pub fn timestamp(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or_default())
}

/// A path on one line: control characters are left out, which a terminal would obey.
pub fn of_path(path: &Path) -> String {
    path.display().to_string().replace(char::is_control, "?")
}

/// At most `most` characters: what is cut off is its beginning, since the end of a path tells more.
pub fn shortened(text: &str, most: usize) -> String {
    let all = text.chars().count();
    if all <= most {
        return text.to_owned();
    }
    let end: String = text.chars().skip(all - most.saturating_sub(3)).collect();
    format!("...{end}")
}

/// A command line as one would type it, cut after `most` characters.
pub fn command_line<'a>(words: impl IntoIterator<Item = &'a OsStr>, most: usize) -> String {
    let mut line = String::new();
    for word in words {
        let word = word.to_string_lossy();
        let plain = !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "_-./=:,+@%".contains(c));
        let gap = if line.is_empty() { "" } else { " " };
        let quoted = if plain {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        };
        let _ = write!(line, "{gap}{}", quoted.replace(char::is_control, "?"));
    }
    if line.chars().count() > most {
        line = line.chars().take(most.saturating_sub(3)).collect::<String>() + "...";
    }
    line
}

/// Why a file was not copied, in words; records and JSON have the key.
pub fn why_not_copied(key: &str) -> String {
    NotCached::meaning_of(key).map_or_else(|| key.replace('_', " "), Into::into)
}

/// A rate as a plan file has it, in bytes of powers of ten: `2.5 GB/s`.
pub fn rate_text(bytes_per_s: f64) -> String {
    let (value, prefix) = scaled(bytes_per_s);
    format!("{} {prefix}B/s", digits(value))
}

/// A size in powers of ten, as rates are: `135 GB`.
pub fn size_text(bytes: f64) -> String {
    let (value, prefix) = scaled(bytes);
    format!("{} {prefix}B", digits(value))
}

/// A time with three digits: `1.25 ms`.
pub fn time_text(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".into(),
        s if s < 1e-3 => format!("{} us", digits(s * 1e6)),
        s if s < 1.0 => format!("{} ms", digits(s * 1e3)),
        s if s < 100.0 => format!("{} s", digits(s)),
        s => duration(Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)),
    }
}

fn scaled(value: f64) -> (f64, &'static str) {
    [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        .find(|(unit, _)| value >= *unit * 0.9995)
        .map_or((value, ""), |(unit, prefix)| (value / unit, prefix))
}

/// Three significant digits, without zeros that say nothing.
fn digits(value: f64) -> String {
    let places = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn times_and_sizes_have_three_digits() {
        assert_eq!(
            [0.0, 5e-5, 0.012, 1.256, 30.04].map(time_text),
            ["0 s", "50 us", "12 ms", "1.26 s", "30 s"]
        );
        assert_eq!([135e9, 105_371.0, 12.0].map(size_text), ["135 GB", "105 kB", "12 B"]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(percent(0, 0), "0 %");
        assert_eq!(percent(1, 1_000_000), "0.1 %");
        assert_eq!(percent(999_999, 1_000_000), "99.9 %");
        assert_eq!(percent(2, 3), "66.7 %");
        assert_eq!([shortened("/scratch", 8), shortened("/scratch/x", 8)], ["/scratch", "...tch/x"]);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096, "2024-02-29T12:34:56.000Z"),
            (4_102_444_799, "2099-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn command_lines_can_be_typed_again() {
        let words = ["python", "a b", "it's", ""].map(OsStr::new);
        assert_eq!(command_line(words, 80), r"python 'a b' 'it'\''s' ''");
        assert_eq!(command_line(words, 10), "python ...");
    }
}
