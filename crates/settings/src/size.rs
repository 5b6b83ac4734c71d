//! Sizes as people write them.

use crate::user_error::UserError;

/// Letters in front of `B` or `iB`, smallest first.
const PREFIXES: &str = "KMGTP";

/// Parses a size such as `200G`, `1.5TiB` or `500MB` into bytes. As in GNU's tools a letter alone, or with `iB`,
/// counts in steps of 1024, with `B` in steps of 1000.
///
/// # Errors
/// An invalid size, no unit or an unknown one, zero, or a size beyond 16 EiB. The message names `what`.
pub fn parse_size(what: &str, text: &str) -> Result<u64, UserError> {
    let refuse = |why: &str| UserError::bad_input(format_args!("{what}: {why}; use a number and a unit, for example 200G or 1.5TiB"));
    let text = text.trim();
    if text.is_empty() {
        return Err(refuse("missing size"));
    }
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let Some((whole, fraction)) = decimal(number) else {
        return Err(refuse(&format!("invalid size '{text}'")));
    };
    if unit.is_empty() {
        return Err(refuse(&format!("missing unit in '{text}'")));
    }
    let unit = unit.trim_start();
    let Some(unit_bytes) = bytes_of_unit(unit) else {
        return Err(refuse(&format!("unknown unit '{unit}' in '{text}'")));
    };
    let (digits, scale) = fraction;
    let bytes = u128::from(whole) * unit_bytes + u128::from(digits) * unit_bytes / scale;
    match u64::try_from(bytes) {
        Ok(0) => Err(refuse(&format!("size '{text}' is zero"))),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(refuse(&format!("size '{text}' is beyond 16 EiB"))),
    }
}

/// Whole part, and digits of the fraction with the power of ten that they are to be divided by.
fn decimal(number: &str) -> Option<(u64, (u64, u128))> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.get(..fraction.len().min(9))?;
    if whole.is_empty() || number.ends_with('.') {
        return None;
    }
    let digits = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some((whole.parse().ok()?, (digits, 10_u128.pow(fraction.len() as u32))))
}

fn bytes_of_unit(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_uppercase();
    if unit == "B" {
        return Some(1);
    }
    let prefix = unit.chars().next()?;
    let power = PREFIXES.find(prefix)? as u32 + 1;
    match unit.get(1..)? {
        "" | "IB" => Some(1024_u128.pow(power)),
        "B" => Some(1000_u128.pow(power)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_mean_what_gnu_tools_mean() {
        for (text, bytes) in [
            ("1B", 1),
            ("64K", 65_536),
            ("200G", 200 << 30),
            ("200g", 200 << 30),
            ("200GiB", 200 << 30),
            ("200GB", 200_000_000_000),
            ("1.5TiB", 3 << 39),
            ("0.25 GB", 250_000_000),
            (" 2P ", 2 << 50),
        ] {
            assert_eq!(parse_size("--tier", text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn sizes_without_meaning_are_named() {
        for text in [
            "",
            "G",
            "200",
            "200X",
            "-5G",
            "1.G",
            "1..5G",
            "80%",
            "0G",
            "0.0000000001B",
            "99999999P",
            "200GiBs",
            "१G",
        ] {
            let line = parse_size("--tier", text).unwrap_err().to_string();
            assert!(
                line.starts_with("--tier: ") && line.contains(text) && line.contains("200G"),
                "{text}: {line}"
            );
        }
    }
}
