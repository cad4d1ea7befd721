"""What limits a job: measured on the user's own data, judged by arithmetic, mended in order of cost."""
