//! Rates, times and shares as people write them: a number and a unit. Sizes are read by [`forebay_settings::size`].

use forebay_settings::{size::parse_size, user_error::UserError};

/// Units of time in seconds.
const TIMES: [(&str, f64); 6] = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)];
/// Units of bits in bits.
const BITS: [(&str, f64); 5] = [("bit", 1.0), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9), ("Tbit", 1e12)];

/// Bytes a second of a rate such as `400 Gbit/s`, `250 GB/s` or `100MiB/s`.
///
/// # Errors
/// An invalid rate, one without a unit, or zero. The message names `what`.
pub fn parse_rate(what: &str, text: &str) -> Result<f64, UserError> {
    let refuse = || {
        UserError::bad_input(format_args!(
            "{what}: invalid rate '{text}'; write a number and a unit, such as 400 Gbit/s or 2.5 GB/s"
        ))
    };
    let amount = text.trim().strip_suffix("/s").ok_or_else(refuse)?.trim_end();
    if let Some(bits) = with_unit(amount, &BITS) {
        return if bits > 0.0 { Ok(bits / 8.0) } else { Err(refuse()) };
    }
    // Of a size, only the forms that nobody takes for another unit: `G` and `Gb` may be bits.
    if !amount.ends_with('B') {
        return Err(refuse());
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate of 2^53 bytes a second is beyond any machine")]
    parse_size(what, amount).map(|bytes| bytes as f64).map_err(|_| refuse())
}

/// Requests a second of a rate such as `40000 /s`.
///
/// # Errors
/// As [`parse_rate`].
pub fn parse_per_second(what: &str, text: &str) -> Result<f64, UserError> {
    let number = text.trim().strip_suffix("/s").and_then(|number| number.trim_end().parse().ok());
    number.filter(|rate: &f64| rate.is_finite() && *rate > 0.0).ok_or_else(|| {
        UserError::bad_input(format_args!(
            "{what}: invalid number of requests a second '{text}'; write a number and /s, such as 40000 /s"
        ))
    })
}

/// Seconds of a time such as `12 ms` or `50us`; it may be zero (`0 s`).
///
/// # Errors
/// An invalid time, or one without a unit. The message names `what`.
pub fn parse_time(what: &str, text: &str) -> Result<f64, UserError> {
    with_unit(text.trim(), &TIMES).ok_or_else(|| {
        UserError::bad_input(format_args!(
            "{what}: invalid time '{text}'; write a number and a unit, such as 12 ms or 1.5 s"
        ))
    })
}

/// A number (digits, and a point between them) and one of these units.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(split);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    let number: f64 = number.parse().ok()?;
    Some(number * factor).filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_settings::text::rate_text;

    #[test]
    fn rates_and_times_mean_what_they_say() {
        for (text, bytes) in [
            ("400 Gbit/s", 50e9),
            ("1kbit/s", 125.0),
            ("250 GB/s", 250e9),
            ("100MiB/s", 104_857_600.0),
            (" 2.5 GB/s ", 2.5e9),
        ] {
            assert!((parse_rate("link", text).unwrap() - bytes).abs() < 1e-6, "{text}");
        }
        for (text, seconds) in [
            ("12 ms", 0.012),
            ("50us", 5e-5),
            ("50 µs", 5e-5),
            ("0 s", 0.0),
            ("1.5 s", 1.5),
            ("2min", 120.0),
        ] {
            assert!((parse_time("step", text).unwrap() - seconds).abs() < 1e-12, "{text}");
        }
        assert!((parse_per_second("requests", "40000 /s").unwrap() - 40_000.0).abs() < 1e-9);
    }

    #[test]
    fn what_has_no_meaning_is_named() {
        for text in [
            "",
            "400",
            "400 Gbit",
            "400 G/s",
            "400 Gb/s",
            "-1 GB/s",
            "0 Gbit/s",
            "0 GB/s",
            "1e3 GB/s",
            "GB/s",
            "400 gbit/s",
            "1..5 Gbit/s",
        ] {
            let line = parse_rate("cluster.link", text).unwrap_err().to_string();
            assert!(
                line.starts_with("cluster.link: ") && line.contains(text) && line.contains("400 Gbit/s"),
                "{text}: {line}"
            );
        }
        for text in ["", "12", "ms", "-12 ms", "12 m", "1h", "12 Ms"] {
            let line = parse_time("job.step", text).unwrap_err().to_string();
            assert!(
                line.starts_with("job.step: ") && line.contains(text) && line.contains("12 ms"),
                "{text}: {line}"
            );
        }
        for text in ["", "40000", "/s", "-1 /s", "0 /s", "inf /s", "nan /s"] {
            assert!(parse_per_second("source.requests", text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in [1.0, 999.0, 1234.0, 2.5e9, 250e9, 1.3e12, 42.0] {
            let read = parse_rate("", &rate_text(value)).unwrap();
            assert!((read / value - 1.0).abs() < 0.006, "{value}: {}", rate_text(value));
        }
    }
}
