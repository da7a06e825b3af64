from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0002_run_modes'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='sealed_input',
            field=models.BinaryField(editable=False, help_text='Its env and stdin, until it has started.', null=True),
        ),
        migrations.AddConstraint(
            model_name='run',
            constraint=models.CheckConstraint(condition=models.Q(('sealed_input__isnull', True), ('status__in', ['queued', 'running']), _connector='OR'), name='run_input_erased_when_final'),
        ),
        # They were kept in clear, and after the run too.
        migrations.RunSQL(
            "UPDATE runs_run SET command = command - '{env,stdin}'::text[] "
            "WHERE jsonb_exists_any(command, '{env,stdin}') AND status NOT IN ('queued', 'running')",
            migrations.RunSQL.noop,
        ),
    ]
