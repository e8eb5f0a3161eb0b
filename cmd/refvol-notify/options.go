package main

import (
	"flag"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the validated flags.
type options struct {
	// dirs are the volumes to watch. only and ignore are patterns of paths in them.
	dirs, only, ignore []string
	// env is a volume with the files want and applied, or "". patience is how long they may be older than the variables. envPrefix begins the
	// names of all variables in want.
	env, envPrefix string
	patience       time.Duration
	// poll is how often the files are read without a notification from the kernel.
	settle, poll time.Duration

	exitCode int
	signal   syscall.Signal
	process  string
	grace    time.Duration
	url      string
	method   string
	status   statusRange
	timeout  time.Duration

	// state is a directory that exists as long as the pod. http is an address to listen on. Both may be "".
	state, http string
}

// usageError says that the command line is wrong.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

func parse(args []string, stdout io.Writer) (*options, error) {
	o := &options{
		patience: time.Minute, settle: time.Second, poll: 30 * time.Second, grace: 30 * time.Second,
		method: "POST", status: statusRange{200, 299}, timeout: 10 * time.Second,
	}
	f := flag.NewFlagSet("refvol-notify", flag.ContinueOnError)
	add := func(name, usage, fix string, set setter) { f.Func(name, usage, withFix(set, fix)) }
	const dir = "the absolute path of a directory, such as /etc/app"
	const pattern = "a path in the volume, with * and ? for what may vary, such as conf.d/*.conf"
	add("dir", "watch the volume at this `directory`; may repeat", dir, each(&o.dirs, isAbsolute))
	add("only", "act on these files only: a `pattern` of the path in the volume, or of the file's name; may repeat", pattern, each(&o.only, isPattern))
	add("ignore", "don't act on these files: a `pattern`; may repeat", pattern, each(&o.ignore, isPattern))
	add("env", "compare this container's variables with the file want of the volume at this `directory`", dir, one(&o.env, isAbsolute))
	add("env-prefix", "with --env: the `prefix` of the names of all variables that objects give to this container, and of no others",
		"letters, digits and underscores, such as refvol_", one(&o.envPrefix, isVariableName))
	add("patience", "with --env: the longest `time` for which the file may be older than the variables (default 1m)", "a time up to 24h, such as 6m", span(&o.patience, 24*time.Hour))
	add("settle", "act once nothing has changed for this `time` (default 1s)", "a time up to 10s, such as 2s", span(&o.settle, longestSettle))
	add("poll", "look at this interval, a `time`, where the kernel reports no changes (default 30s)", "a time from 100ms to 1h, such as 1s",
		func(value string) bool { return span(&o.poll, time.Hour)(value) && o.poll >= 100*time.Millisecond })
	add("exit-code", "exit with this `code`, which restartPolicyRules of the container name",
		"a number from 3 to 125, such as 42: 1 and 2 are this program's own failures", exitCode(&o.exitCode))
	add("signal", "send this signal, by its `name`, such as HUP", "the name of a signal, such as HUP, TERM or USR1", signalNamed(&o.signal))
	add("process", "send it to the processes of this `name`; if their parent has the name too, to the parent",
		"the name of the program's file without directories, such as nginx", one(&o.process, isName))
	add("grace", "with --signal and --exit-code: the longest `time` to wait for the end of the processes (default 30s)", "a time up to 1h, such as 30s", span(&o.grace, time.Hour))
	add("url", "request this `URL` at a loopback address",
		"a URL with http:// and 127.0.0.1, [::1] or localhost, such as http://127.0.0.1:9090/-/reload", one(&o.url, isLoopbackURL))
	add("method", "the request's `method` (default POST)", "a method of HTTP in capital letters, such as POST", one(&o.method, isMethod))
	add("status", "the `status` that means success, or a range (default 200-299)", "a status from 100 to 599, or a range, such as 200-299", statusOf(&o.status))
	add("timeout", "the longest `time` of one request (default 10s)", "a time up to 10m, such as 30s", span(&o.timeout, 10*time.Minute))
	add("state", "note what the containers run with in this `directory`, of an emptyDir with medium: Memory", dir, one(&o.state, isAbsolute))
	add("http", "serve /healthz, /readyz and /metrics at this `address`, such as :9811",
		"a port after a colon, with or without an address before it, such as :9811", one(&o.http, isAddress))
	if err := parseFlags(f, args, stdout); err != nil {
		return nil, err
	}
	return o, o.validate(f)
}

// parseFlags parses the flags. If --help is set, it prints the help to stdout.
func parseFlags(f *flag.FlagSet, args []string, stdout io.Writer) error {
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	switch {
	case err == flag.ErrHelp: //nolint:errorlint // It is documented to be this value.
		f.SetOutput(stdout)
		f.Usage()
		return err
	case err != nil:
		return usagef("%v; %s --help lists the flags", err, f.Name())
	case f.NArg() > 0:
		return usagef("unexpected argument %q: each flag begins with --", f.Arg(0))
	}
	return nil
}

// requiredFlags returns pairs of flags: the first has no effect without the second. The third value says what to write for the second.
func requiredFlags() [][3]string {
	const url = "such as http://127.0.0.1:9090/-/reload"
	return [][3]string{
		{"exit-code", "state", "a directory of an emptyDir with medium: Memory, for what the containers run with"},
		{"signal", "process", "the name of the program to signal"},
		{"process", "signal", "such as HUP"},
		{"grace", "signal", "such as TERM"},
		{"grace", "exit-code", "such as 42"},
		{"env", "exit-code", "only a restart changes a process's variables"},
		{"env", "env-prefix", "the prefix of the names in this container's env and envFrom, such as refvol_"},
		{"env-prefix", "env", "the directory of the volume with want and applied"},
		{"patience", "env", "the directory of the volume with want and applied"},
		{"method", "url", url},
		{"status", "url", url},
		{"timeout", "url", url},
	}
}

func (o *options) validate(f *flag.FlagSet) error {
	given := map[string]bool{}
	f.Visit(func(g *flag.Flag) { given[g.Name] = true })
	for _, n := range requiredFlags() {
		if given[n[0]] && !given[n[1]] {
			return usagef("--%s needs --%s: %s", n[0], n[1], n[2])
		}
	}
	switch {
	case len(o.dirs) == 0 && o.env == "":
		return usagef("nothing to watch: add --dir with the directory of a volume, or --env")
	case o.url != "" && (o.exitCode != 0 || o.signal != 0):
		return usagef("--url is one action, --exit-code or --signal another: remove one of them")
	case o.url == "" && o.exitCode == 0 && o.signal == 0:
		return usagef("nothing to do after a change: add --exit-code with --state, --signal with --process, or --url")
	}
	return nil
}

// watched returns all directories.
func (o *options) watched() []string {
	if o.env == "" {
		return o.dirs
	}
	return append([]string{o.env}, o.dirs...)
}

// isRelevant reports whether a change of a file matters. In the volume of --env only want does.
func (o *options) isRelevant(dir, name string) bool {
	if dir == o.env {
		return name == wantFile
	}
	if isMatch(o.ignore, name) {
		return false
	}
	if len(o.only) > 0 {
		return isMatch(o.only, name)
	}
	return !isMatch([]string{"versions", "versions.json"}, name)
}

func isMatch(patterns []string, name string) bool {
	for _, pattern := range patterns {
		whole, _ := path.Match(pattern, name)
		base, _ := path.Match(pattern, path.Base(name))
		if whole || base {
			return true
		}
	}
	return false
}

// action describes the action for a log. It leaves out the URL's query, which may hold a secret.
func (o *options) action() string {
	target, _, _ := strings.Cut(o.url, "?")
	switch {
	case o.exitCode != 0 && o.signal != 0:
		return fmt.Sprintf("send %s to %s, then exit %d", signalName(o.signal), o.process, o.exitCode)
	case o.exitCode != 0:
		return fmt.Sprintf("exit %d", o.exitCode)
	case o.signal != 0:
		return fmt.Sprintf("send %s to %s", signalName(o.signal), o.process)
	}
	return o.method + " " + target
}

func (o *options) want() string { return filepath.Join(o.env, wantFile) }
