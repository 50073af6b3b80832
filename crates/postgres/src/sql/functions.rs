//! The functions by which any program puts rows into the intake table.

/// The intake table, and its functions.
///
/// A caller needs USAGE of the schema and no right to any table: `enqueue` works with the rights of
/// its owner. So its search path is fixed, and temporary objects come last in it. `start` and
/// `signal` only make the options. Their parameters have the names of the options in Rust.
///
/// The constraints have names that describe the fault. A fault that no constraint can find, such as
/// a name that shows nothing, is found when the row is taken.
macro_rules! intake_create {
    () => {
        "
CREATE SEQUENCE intake_number;
CREATE TABLE intake (
    number BIGINT PRIMARY KEY DEFAULT nextval('intake_number'),
    id TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT id_of_1_to_64_bytes CHECK (octet_length(id) BETWEEN 1 AND 64),
    namespace TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT namespace_of_1_to_255_bytes CHECK (octet_length(namespace) BETWEEN 1 AND 255)
        CONSTRAINT namespace_without_control_characters CHECK (namespace !~ '[\\u0001-\\u001f\\u007f]'),
    verb TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT verb_is_start_or_signal CHECK (verb IN ('start', 'signal')),
    execution TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT execution_of_1_to_255_bytes CHECK (octet_length(execution) BETWEEN 1 AND 255)
        CONSTRAINT execution_without_control_characters CHECK (execution !~ '[\\u0001-\\u001f\\u007f]'),
    name TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT name_of_1_to_255_bytes CHECK (octet_length(name) BETWEEN 1 AND 255)
        CONSTRAINT name_without_control_characters CHECK (name !~ '[\\u0001-\\u001f\\u007f]'),
    input TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT input_is_json CHECK (input::JSON IS NOT NULL),
    options TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT options_are_a_json_object
        CHECK (json_typeof(options::JSON) = 'object' AND octet_length(options) <= 65536),
    sender TEXT COLLATE \"C\" NOT NULL
        CONSTRAINT sender_of_1_to_255_bytes CHECK (octet_length(sender) BETWEEN 1 AND 255)
);
CREATE INDEX intake_execution ON intake (namespace, execution, number);
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', TRUE);
CREATE FUNCTION enqueue(
    id TEXT,
    namespace TEXT,
    verb TEXT,
    execution TEXT,
    name TEXT,
    input TEXT,
    options TEXT,
    sender TEXT
)
RETURNS VOID
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
AS $function$
#variable_conflict use_variable
BEGIN
    INSERT INTO intake (id, namespace, verb, execution, name, input, options, sender)
    VALUES (id, namespace, verb, execution, name, input, options, sender);
    PERFORM pg_notify('abide', 'i ' || current_schema());
END
$function$;
CREATE FUNCTION start(
    name TEXT,
    input JSON DEFAULT 'null',
    id TEXT DEFAULT NULL,
    kind TEXT DEFAULT NULL,
    lane TEXT DEFAULT NULL,
    requires TEXT[] DEFAULT NULL,
    priority INT DEFAULT NULL,
    delay INTERVAL DEFAULT NULL,
    deadline INTERVAL DEFAULT NULL,
    retry JSON DEFAULT NULL,
    tags JSON DEFAULT NULL,
    namespace TEXT DEFAULT NULL,
    sender TEXT DEFAULT NULL
)
RETURNS TEXT
LANGUAGE plpgsql SET search_path FROM CURRENT
AS $function$
#variable_conflict use_variable
DECLARE
    execution TEXT := COALESCE(id, gen_random_uuid()::TEXT);
    options JSON := json_strip_nulls(json_build_object(
        'kind', kind,
        'lane', lane,
        'requires', requires,
        'priority', priority,
        'delay_ms', EXTRACT(EPOCH FROM delay) * 1000,
        'deadline_ms', EXTRACT(EPOCH FROM deadline) * 1000,
        'retry', retry,
        'tags', tags
    ));
BEGIN
    PERFORM enqueue(
        gen_random_uuid()::TEXT, COALESCE(namespace, 'default'), 'start', execution, name,
        COALESCE(input, 'null')::TEXT, options::TEXT, COALESCE(sender, session_user::TEXT)
    );
    RETURN execution;
END
$function$;
CREATE FUNCTION signal(
    id TEXT,
    name TEXT,
    value JSON DEFAULT 'null',
    key TEXT DEFAULT NULL,
    namespace TEXT DEFAULT NULL,
    sender TEXT DEFAULT NULL
)
RETURNS TEXT
LANGUAGE plpgsql SET search_path FROM CURRENT
AS $function$
#variable_conflict use_variable
DECLARE
    row_id TEXT := gen_random_uuid()::TEXT;
BEGIN
    PERFORM enqueue(
        row_id, COALESCE(namespace, 'default'), 'signal', id, name, COALESCE(value, 'null')::TEXT,
        json_strip_nulls(json_build_object('key', key))::TEXT, COALESCE(sender, session_user::TEXT)
    );
    RETURN row_id;
END
$function$"
    };
}
