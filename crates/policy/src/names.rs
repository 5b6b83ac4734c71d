//! Enums whose variants have a name that users write.

use std::fmt;

/// A name that no variant of an enum has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// Name that was written.
    pub name: String,
    /// Noun for the enum, such as `policy`.
    pub kind: &'static str,
    /// Names of all variants, in the order of the enum's `ALL`.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "unknown {} '{}'; use one of {}",
            self.kind,
            self.name,
            self.known.join(", ")
        )
    }
}

impl std::error::Error for UnknownName {}

/// Declares an enum with one name a variant, for users, plan files and messages between processes alike.
macro_rules! named {
    ($(#[$attribute:meta])* $kind:literal pub enum $Type:ident { $($(#[$doc:meta])* $Variant:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $Type {
            $($(#[$doc])* #[serde(rename = $name)] $Variant,)*
        }

        impl $Type {
            /// All variants, Forebay's own choice first.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$Variant),*];

            /// Name of the variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)*
                }
            }
        }

        impl std::str::FromStr for $Type {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                Self::ALL.into_iter().find(|variant| variant.name() == name).ok_or_else(|| $crate::names::UnknownName {
                    name: name.into(),
                    kind: $kind,
                    known: Self::ALL.map(Self::name).to_vec(),
                })
            }
        }
    };
}

pub(crate) use named;
