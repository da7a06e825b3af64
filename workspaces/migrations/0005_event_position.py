"""The place of events in streams, and their announcement.

Ids are made before the commit that shows an event, so that a reader who goes by them may pass one
that comes late. Positions are given to events that can be seen, by one process at a time.
"""

from django.db import migrations, models

SEQUENCE = "CREATE SEQUENCE workspace_event_position_seq AS bigint"
DROP_SEQUENCE = "DROP SEQUENCE workspace_event_position_seq"
ANNOUNCEMENT = """
CREATE FUNCTION workspace_event_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('workspace_events', json_build_object(
        'workspaceId', NEW.workspace_id,
        'ownerUserId', (SELECT owner_user_id FROM workspaces_workspace WHERE id = NEW.workspace_id)
    )::text);
    RETURN NULL;
END
$$;
CREATE TRIGGER workspace_event_announce AFTER INSERT ON workspaces_workspaceevent
    FOR EACH ROW EXECUTE FUNCTION workspace_event_announce();
"""
DROP_ANNOUNCEMENT = """
DROP TRIGGER workspace_event_announce ON workspaces_workspaceevent;
DROP FUNCTION workspace_event_announce();
"""


class Migration(migrations.Migration):
    dependencies = [("workspaces", "0004_event_types")]

    operations = [
        migrations.AddField(
            model_name="workspaceevent",
            name="position",
            field=models.BigIntegerField(editable=False, null=True, unique=True),
        ),
        migrations.AddIndex(
            model_name="workspaceevent",
            index=models.Index(fields=["workspace", "position"], name="event_of_stream"),
        ),
        migrations.AddIndex(
            model_name="workspaceevent",
            index=models.Index(
                condition=models.Q(("position__isnull", True)),
                fields=["id"],
                name="event_unplaced",
            ),
        ),
        migrations.RunSQL(SEQUENCE, DROP_SEQUENCE),
        migrations.RunSQL(ANNOUNCEMENT, DROP_ANNOUNCEMENT),
    ]
