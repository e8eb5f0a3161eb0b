package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/helppage"
	"github.com/refvol/refvol/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// runCommand executes a command line that ends by itself.
func runCommand(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	defer func() {
		if err := logsapi.ResetForTest(nil); err != nil { // logging is set up once per process
			t.Error(err)
		}
		klog.StopFlushDaemon()
	}()
	var out, errOut bytes.Buffer
	err = run(t.Context(), args, &out, &errOut)
	return out.String(), errOut.String(), err
}

func TestVersion(t *testing.T) {
	out, errOut, err := runCommand(t, "version")
	if err != nil || errOut != "" {
		t.Fatalf("%v, %q", err, errOut)
	}
	if !regexp.MustCompile(`^refvol-plugin v\S+ \(go1\.\S+, linux/\w+\)\n$`).MatchString(out) {
		t.Errorf("got %q", out)
	}
}

// fails runs command lines that begin with the same arguments. Only main prints the error and exits, so nothing here may end the test. A wanted
// text that begins with three dots may be anywhere in the error.
func fails(t *testing.T, begin string, wants map[string]string) {
	t.Helper()
	for args, want := range wants {
		out, errOut, err := runCommand(t, strings.Fields(begin+" "+args)...)
		part, isPart := strings.CutPrefix(want, "...")
		if err == nil || !strings.Contains(err.Error(), part) || !isPart && (err.Error() != want || out+errOut != "") {
			t.Errorf("%s %s: got %v, want %s; it printed %q", begin, args, err, want, out+errOut)
		}
	}
}

func TestACommandLineThatIsWrong(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	fails(t, "", map[string]string{
		"no-such-command":              `unknown command "no-such-command" for "refvol-plugin"`,
		"--no-such-flag":               "unknown flag: --no-such-flag",
		"serve --no-such-flag":         "unknown flag: --no-such-flag",
		"serve argument":               `unknown command "argument" for "refvol-plugin serve"`,
		"version argument":             `unknown command "argument" for "refvol-plugin version"`,
		"serve --resync-interval=soon": `invalid argument "soon" for "--resync-interval" flag: time: invalid duration "soon"`,
		"status --status-address=":     "--status-address: Required value: name the address that the plugin serves at",
		"status -o xml":                `--output: Unsupported value: "xml": must be wide, json or yaml`,
		"serve --logging-format=xml":   `logging flags: format: Invalid value: "xml": Unsupported log format`,
	})
}

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of serve and status, without the flags for logs.
func TestCommandsPage(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	logs := pflag.NewFlagSet("", pflag.ContinueOnError)
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), logs)
	var commands []helppage.Command
	for _, cmd := range newRootCommand().Commands() {
		if cmd.Name() == "version" {
			continue
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || logs.Lookup(f.Name) != nil })
		var b bytes.Buffer
		cmd.SetOut(&b)
		must(t, cmd.Help())
		commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: b.String()})
	}
	helppage.Check(t, "../../docs/commands.md", "refvol-plugin", commands, *update)
}

// TestChartKnowsEveryFlag: the chart's extraArgs accept the flags of serve and refuse unknown ones. Flags that a value sets are refused
// with a text that names the value.
func TestChartKnowsEveryFlag(t *testing.T) {
	text, err := os.ReadFile("../../deploy/charts/refvol/values.schema.json")
	must(t, err)
	var schema struct {
		Properties struct {
			ExtraArgs struct{ Items struct{ Pattern string } }
		}
	}
	must(t, json.Unmarshal(text, &schema))
	var flags []string
	newServeCommand().Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	slices.Sort(flags)
	if got, want := schema.Properties.ExtraArgs.Items.Pattern, "^--("+strings.Join(flags, "|")+")(=|$)"; got != want {
		t.Errorf("extraArgs has the pattern\n%s\nwant\n%s", got, want)
	}
}

// TestDocumentedTimes: docs/limits.md says how long a request waits on a connection without an answer.
func TestDocumentedTimes(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.md")
	must(t, err)
	want := fmt.Sprintf("(%v s if the host is gone) | %v s |", unackedTimeout.Seconds(), (pingAfter + pingTimeout).Seconds())
	if !strings.Contains(string(text), want) {
		t.Errorf("docs/limits.md doesn't say %q", want)
	}
}

// TestWhatIsLinked names packages that doubled the size of the binary, and its resident memory. Each of them came with an import of a few
// functions.
func TestWhatIsLinked(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "go", "list", "-tags", "grpcnotrace", "-deps", ".").Output()
	must(t, err)
	linked := strings.Fields(string(output))
	if !slices.Contains(linked, "k8s.io/client-go/rest") {
		t.Fatalf("go list says nothing of k8s.io/client-go/rest: %q", linked)
	}
	for prefix, instead := range map[string]string{
		"k8s.io/client-go/kubernetes":          "pkg/apiclient",
		"k8s.io/client-go/applyconfigurations": "pkg/apiclient",
		"k8s.io/client-go/discovery":           "pkg/apiclient",
		"k8s.io/client-go/informers":           "pkg/manager",
		"k8s.io/client-go/tools/cache":         "pkg/manager",
		"k8s.io/client-go/tools/portforward":   "cmd/kubectl-refvol",
		"k8s.io/client-go/transport/websocket": "cmd/kubectl-refvol",
		"k8s.io/streaming":                     "cmd/kubectl-refvol",
		"k8s.io/kubectl":                       "a function of its own",
		"k8s.io/kubernetes":                    "a function of its own",
		// The template packages keep the linker from removing unused methods.
		"html/template":          "the build tag grpcnotrace",
		"golang.org/x/net/trace": "the build tag grpcnotrace",
	} {
		for _, path := range linked {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				t.Errorf("%s is linked; use %s", path, instead)
				break
			}
		}
	}
}

// TestAServeThatEndsAtOnceUnlocks: its context ends before it has the lock, or right after.
func TestAServeThatEndsAtOnceUnlocks(t *testing.T) {
	dir := t.TempDir()
	opts := newServeOptions()
	opts.nodeName, opts.kubeletDir, opts.endpoint = "node-1", dir, "unix://"+filepath.Join(dir, "csi.sock")
	opts.httpAddress, opts.statusAddress, opts.kubeconfig = "127.0.0.1:0", "", kubeconfig(t)
	must(t, opts.validate())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, serve(ctx, opts))
	lock, err := os.Open(filepath.Join(dir, "csi.sock.lock"))
	must(t, err)
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("it is still locked: %v", err)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
