from django.db import migrations, models

COUNT = """
    UPDATE run_head SET stored_bytes = counted.bytes
    FROM (
        SELECT run_number, sum(octet_length(meta) + octet_length(body)) AS bytes
        FROM run_event GROUP BY run_number
    ) counted
    WHERE run_head.run_number = counted.run_number
"""


class Migration(migrations.Migration):
    """How much room each record takes, for the limits of owners."""

    dependencies = [("runs", "0002_head_sources_and_removal")]

    operations = [
        migrations.AddField(
            model_name="runhead",
            name="stored_bytes",
            field=models.BigIntegerField(
                default=0, help_text="What its events take in the log, with their headers."
            ),
        ),
        migrations.RunSQL(COUNT, migrations.RunSQL.noop),
    ]
