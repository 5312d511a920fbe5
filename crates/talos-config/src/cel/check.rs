use super::parser::{Node, Tree};
use super::{Fault, Kind, Scope};

const UNITS: [&str; 12] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "kB", "MB", "GB", "TB", "PB", "EB"];

/// Calls that say yes or no.
const PREDICATES: [&str; 10] = [
    "startsWith",
    "endsWith",
    "contains",
    "matches",
    "exists",
    "exists_one",
    "all",
    "has",
    "glob",
    "isInf",
];

/// Calls whose result is not followed any further.
const OTHER_CALLS: [&str; 21] = [
    "size",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "bool",
    "dyn",
    "type",
    "duration",
    "timestamp",
    "map",
    "filter",
    "mac",
    "lowerAscii",
    "upperAscii",
    "split",
    "join",
    "replace",
    "trim",
    "substring",
];

pub fn type_of(tree: &Tree, scope: Scope) -> Result<Kind, Fault> {
    match &tree.node {
        Node::Literal(kind) => Ok(*kind),
        Node::Name(name) => name_type(name, tree.at, scope),
        Node::Field(target, field) => field_type(target, field, tree.at, scope),
        Node::Index(target, index) => {
            type_of(target, scope)?;
            type_of(index, scope)?;
            Ok(Kind::Unknown)
        }
        Node::Call { target, name, arguments } => call_type(target.as_deref(), name, arguments, tree.at, scope),
        Node::Unary(sign, operand) => unary_type(sign, type_of(operand, scope)?, tree.at),
        Node::Binary(sign, left, right) => binary_type(sign, type_of(left, scope)?, type_of(right, scope)?, tree.at),
        Node::Choice(condition, yes, no) => {
            expect_bool(type_of(condition, scope)?, tree.at, "_?_:_")?;
            let (yes, no) = (type_of(yes, scope)?, type_of(no, scope)?);
            Ok(if yes == no { yes } else { Kind::Unknown })
        }
        Node::Collection(kind, items) => {
            items.iter().try_for_each(|item| type_of(item, scope).map(|_| ()))?;
            Ok(*kind)
        }
    }
}

fn name_type(name: &str, at: usize, scope: Scope) -> Result<Kind, Fault> {
    match (scope, name) {
        (Scope::Any, _) | (Scope::Disk, "disk") | (Scope::Link, "link") => Ok(Kind::Unknown),
        (Scope::Disk, "system_disk") => Ok(Kind::Bool),
        (Scope::Disk, unit) if UNITS.contains(&unit) => Ok(Kind::Uint),
        _ => Err(Fault::new(at, format!("undeclared reference to '{name}' (in container '')"))),
    }
}

fn field_type(target: &Tree, field: &str, at: usize, scope: Scope) -> Result<Kind, Fault> {
    let Node::Name(name) = &target.node else {
        type_of(target, scope)?;
        return Ok(Kind::Unknown);
    };
    let known = match (scope, name.as_str()) {
        (Scope::Disk, "disk") => disk_field(field),
        (Scope::Link, "link") => link_field(field),
        _ => {
            name_type(name, target.at, scope)?;
            return Ok(Kind::Unknown);
        }
    };
    known.ok_or_else(|| Fault::new(at, format!("undefined field '{field}'")))
}

fn disk_field(field: &str) -> Option<Kind> {
    match field {
        "size" | "io_size" | "sector_size" => Some(Kind::Uint),
        "readonly" | "rotational" | "cdrom" => Some(Kind::Bool),
        "secondary_disks" | "symlinks" => Some(Kind::List),
        "model" | "serial" | "modalias" | "wwid" | "uuid" | "bus_path" | "sub_system" | "transport" | "dev_path"
        | "pretty_size" => Some(Kind::Text),
        _ => None,
    }
}

fn link_field(field: &str) -> Option<Kind> {
    match field {
        "index" | "link_index" | "flags" | "mtu" | "master_index" => Some(Kind::Uint),
        "type" | "operational_state" | "port" | "duplex" | "speed_megabits" => Some(Kind::Int),
        "hardware_addr" | "broadcast_addr" | "permanent_addr" => Some(Kind::Bytes),
        "link_state" => Some(Kind::Bool),
        "alt_names" => Some(Kind::List),
        "vlan" | "bridge_master" | "bond_master" | "wireguard" | "vrf_master" => Some(Kind::Unknown),
        "queue_disc" | "kind" | "slave_kind" | "bus_path" | "pciid" | "driver" | "driver_version" | "firmware_version"
        | "product_id" | "vendor_id" | "product" | "vendor" | "alias" => Some(Kind::Text),
        _ => None,
    }
}

fn call_type(target: Option<&Tree>, name: &str, arguments: &[Tree], at: usize, scope: Scope) -> Result<Kind, Fault> {
    if let Some(target) = target {
        type_of(target, scope)?;
    }
    // A macro introduces names of its own.
    let binds = target.is_some() && matches!(name, "exists" | "exists_one" | "all" | "map" | "filter");
    let scope = if binds { Scope::Any } else { scope };
    let kinds = arguments
        .iter()
        .map(|argument| type_of(argument, scope))
        .collect::<Result<Vec<_>, _>>()?;
    let fits = |expected: &[Kind]| {
        kinds.len() == expected.len()
            && kinds
                .iter()
                .zip(expected)
                .all(|(kind, wanted)| kind == wanted || *kind == Kind::Unknown)
    };
    match name {
        "glob" if scope != Scope::Any && !fits(&[Kind::Text, Kind::Text]) => Err(no_overload(name, &kinds, at)),
        "mac" if scope == Scope::Link && !fits(&[Kind::Bytes]) => Err(no_overload(name, &kinds, at)),
        "mac" if scope == Scope::Link => Ok(Kind::Text),
        "mac" if scope == Scope::Disk => Err(undeclared(name, at)),
        "size" => Ok(Kind::Int),
        _ if PREDICATES.contains(&name) => Ok(Kind::Bool),
        _ if OTHER_CALLS.contains(&name) || scope == Scope::Any => Ok(Kind::Unknown),
        _ => Err(undeclared(name, at)),
    }
}

fn undeclared(name: &str, at: usize) -> Fault {
    Fault::new(at, format!("undeclared reference to '{name}' (in container '')"))
}

fn unary_type(sign: &str, operand: Kind, at: usize) -> Result<Kind, Fault> {
    let fits = match sign {
        "!" => matches!(operand, Kind::Bool | Kind::Unknown),
        _ => matches!(operand, Kind::Int | Kind::Double | Kind::Unknown),
    };
    if fits {
        Ok(operand)
    } else {
        Err(no_overload(&format!("{sign}_"), &[operand], at))
    }
}

fn binary_type(sign: &str, left: Kind, right: Kind, at: usize) -> Result<Kind, Fault> {
    let known = left != Kind::Unknown && right != Kind::Unknown;
    let is_number = |kind| matches!(kind, Kind::Int | Kind::Uint | Kind::Double);
    let fits = match sign {
        "&&" | "||" => return both_bool(sign, left, right, at),
        "in" => !known || matches!(right, Kind::List | Kind::Map),
        "==" | "!=" => !known || left == right,
        "<" | "<=" | ">" | ">=" => !known || left == right && !matches!(left, Kind::List | Kind::Map | Kind::Null),
        "+" => !known || left == right && (is_number(left) || matches!(left, Kind::Text | Kind::Bytes | Kind::List)),
        "%" => !known || left == right && matches!(left, Kind::Int | Kind::Uint),
        _ => !known || left == right && is_number(left),
    };
    let operator = if sign == "in" { "@in".to_owned() } else { format!("_{sign}_") };
    match sign {
        _ if !fits => Err(no_overload(&operator, &[left, right], at)),
        "+" | "-" | "*" | "/" | "%" => Ok(if known { left } else { Kind::Unknown }),
        _ => Ok(Kind::Bool),
    }
}

fn both_bool(sign: &str, left: Kind, right: Kind, at: usize) -> Result<Kind, Fault> {
    let fits = |kind| matches!(kind, Kind::Bool | Kind::Unknown);
    if fits(left) && fits(right) {
        Ok(Kind::Bool)
    } else {
        Err(no_overload(&format!("_{sign}_"), &[left, right], at))
    }
}

fn expect_bool(kind: Kind, at: usize, operator: &str) -> Result<(), Fault> {
    if matches!(kind, Kind::Bool | Kind::Unknown) {
        Ok(())
    } else {
        Err(no_overload(operator, &[kind], at))
    }
}

fn no_overload(operator: &str, kinds: &[Kind], at: usize) -> Fault {
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    Fault::new(
        at,
        format!(
            "found no matching overload for '{operator}' applied to '({})'",
            kinds.join(", ")
        ),
    )
}
