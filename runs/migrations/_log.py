"""The parts of migration 0001 that Django has no words for: the partitioned, append-only log."""

SEQUENCE = "CREATE SEQUENCE run_number_seq AS bigint"
DROP_SEQUENCE = "DROP SEQUENCE run_number_seq"

# Wide columns first, so that rows carry no padding. Bodies are kept out of line as they are: they
# are read whole or not at all, and compressing them would cost the writer its speed.
LOG = """
CREATE TABLE run_event (
    run_number bigint NOT NULL,
    sequence bigint NOT NULL,
    stream_offset bigint NOT NULL,
    wall_us bigint NOT NULL,
    monotonic_ns bigint NOT NULL,
    process_number integer NOT NULL,
    length integer NOT NULL,
    kind smallint NOT NULL,
    stream smallint NOT NULL,
    method smallint NOT NULL,
    confidence smallint NOT NULL,
    link bytea NOT NULL,
    meta bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (run_number, sequence)
) PARTITION BY RANGE (run_number);
ALTER TABLE run_event ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX run_event_io ON run_event (run_number, process_number, stream, stream_offset)
    WHERE kind = 4;
CREATE INDEX run_event_other ON run_event (run_number, kind, sequence) WHERE kind <> 4;

CREATE FUNCTION run_event_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('svc.retention', true) = 'on' THEN
        -- A row trigger: the deleted row goes on; a statement trigger ignores the value.
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the log of runs is append-only: % is refused', TG_OP
        USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER run_event_append_only BEFORE UPDATE OR DELETE ON run_event
    FOR EACH ROW EXECUTE FUNCTION run_event_refuse();
CREATE TRIGGER run_event_no_truncate BEFORE TRUNCATE ON run_event
    FOR EACH STATEMENT EXECUTE FUNCTION run_event_refuse();

-- Asked of the tables, as they are now: to_regclass() may still say what was so before a wait.
CREATE FUNCTION run_event_has_partition(name text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (
        SELECT FROM pg_class JOIN pg_inherits ON inhrelid = pg_class.oid
        WHERE relname = name AND inhparent = 'run_event'::regclass AND NOT inhdetachpending
    );
$$;
CREATE FUNCTION run_event_ensure_partition(number bigint, per_partition bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part bigint := number / per_partition;
    name text := 'run_event_p' || part;
BEGIN
    IF run_event_has_partition(name) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('run_event_ensure_partition', 0));
    IF run_event_has_partition(name) THEN
        RETURN;
    END IF;
    -- Attached afterwards, because that lets readers and writers of other partitions go on.
    EXECUTE format('CREATE TABLE %I (LIKE run_event INCLUDING ALL)', name);
    EXECUTE format('CREATE TRIGGER run_event_no_truncate BEFORE TRUNCATE ON %I '
        'FOR EACH STATEMENT EXECUTE FUNCTION run_event_refuse()', name);
    EXECUTE format('ALTER TABLE run_event ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
        name, part * per_partition, (part + 1) * per_partition);
END
$$;
SELECT run_event_ensure_partition(0, 1000), run_event_ensure_partition(1000, 1000);
"""
DROP_LOG = """
DROP FUNCTION run_event_ensure_partition(bigint, bigint);
DROP FUNCTION run_event_has_partition(text);
DROP TABLE run_event;
DROP FUNCTION run_event_refuse();
"""
