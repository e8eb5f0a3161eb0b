package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/helppage"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/node"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/report"
	"github.com/refvol/refvol/pkg/status"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// runCommand returns what a command prints, and its error, which must be the last of it.
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
	stderr = errOut.String()
	if err != nil {
		others, isPrinted := strings.CutSuffix(stderr, "Error: "+err.Error()+"\n")
		if !isPrinted {
			t.Errorf("%q: the error %v is not printed: %q", args, err, stderr)
		}
		stderr = others
	}
	return out.String(), stderr, err
}

func TestVersion(t *testing.T) {
	out, errOut, err := runCommand(t, "version")
	if err != nil || errOut != "" || !regexp.MustCompile(`^refvol-plugin v\S+ \(go1\.\S+, linux/\w+\)\n$`).MatchString(out) {
		t.Errorf("got %q, %q, %v", out, errOut, err)
	}
}

// fails runs command lines that begin with the same arguments. Only main exits, so nothing here may end the test. A wanted
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
		must.Do(t, cmd.Help())
		commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: b.String()})
	}
	helppage.Check(t, "../../docs/commands.md", "refvol-plugin", commands, *update)
}

// TestChartKnowsEveryFlag: the chart's extraArgs accept the flags of serve and refuse unknown ones. Flags that a value sets are refused
// with a text that names the value.
func TestChartKnowsEveryFlag(t *testing.T) {
	text := must.Get(os.ReadFile("../../deploy/charts/refvol/values.schema.json"))(t)
	var schema struct {
		Properties struct {
			ExtraArgs struct{ Items struct{ Pattern string } }
		}
	}
	must.Do(t, json.Unmarshal(text, &schema))
	var flags []string
	newServeCommand().Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	slices.Sort(flags)
	if got, want := schema.Properties.ExtraArgs.Items.Pattern, "^--("+strings.Join(flags, "|")+")(=|$)"; got != want {
		t.Errorf("extraArgs has the pattern\n%s\nwant\n%s", got, want)
	}
}

// TestSettings: each setting of the node is the value of its flag.
func TestSettings(t *testing.T) {
	opts, cmd := newServeOptions(), &cobra.Command{}
	opts.addFlags(cmd)
	must.Do(t, cmd.ParseFlags([]string{
		"--driver-name=d", "--node-name=n", "--kubelet-dir=/k", "--identity=pod", "--change-detection=Cache", "--cross-namespace",
		"--resync-interval=2m", "--default-spread=3m", "--publish-wait=4s", "--max-volume-size=1Mi", "--max-total-size=2Mi", "--max-cached-size=3Mi",
	}))
	want := node.Settings{
		Driver: "d", NodeName: "n", KubeletDir: "/k", Identity: "pod", ChangeDetection: manager.Cache, CrossNamespace: true,
		ResyncInterval: 2 * time.Minute, DefaultSpread: 3 * time.Minute, PublishWait: 4 * time.Second,
		MaxVolumeSize: 1 << 20, MaxTotalSize: 2 << 20, MaxCachedSize: 3 << 20,
	}
	for field, value := range reflect.ValueOf(want).Fields() {
		if value.IsZero() {
			t.Errorf("this test knows no flag for %s", field.Name)
		}
	}
	expect.Equal(t, "settings", must.Get(opts.settings())(t), want)
}

// TestGracePeriod: the kubelet waits longer for the end of the plugin than the plugin for its running calls. Otherwise it kills the plugin
// before the receipts are saved.
func TestGracePeriod(t *testing.T) {
	text := must.Get(os.ReadFile("../../deploy/base/daemonset.yaml"))(t)
	found := regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)\n`).FindSubmatch(text)
	if found == nil {
		t.Fatal("the DaemonSet has no grace period")
	}
	if grace := must.Get(time.ParseDuration(string(found[1]) + "s"))(t); grace <= drainTimeout {
		t.Errorf("the kubelet kills the plugin after %s, and calls may run for %s", grace, drainTimeout)
	}
}

// TestDocumentedTimes: docs/limits.md says how long a request waits on a connection without an answer.
func TestDocumentedTimes(t *testing.T) {
	doclines.Says(t, "../../docs/limits.md", fmt.Sprintf("(%v s if the host is gone) | %v s |", unackedTimeout.Seconds(), (pingAfter+pingTimeout).Seconds()))
}

// TestWhatIsLinked names packages that doubled the size of the binary, and its resident memory. Each of them came with an import of a few
// functions.
func TestWhatIsLinked(t *testing.T) {
	output := must.Get(exec.CommandContext(t.Context(), "go", "list", "-tags", "grpcnotrace", "-deps", ".").Output())(t)
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
	must.Do(t, opts.validate())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Do(t, serve(ctx, opts))
	lock := must.Get(os.Open(filepath.Join(dir, "csi.sock.lock")))(t)
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("it is still locked: %v", err)
	}
}

func TestValuesThatAreNotSupported(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	const (
		profiles = "must be a loopback address, such as 127.0.0.1:6060: profiles are not for the network"
		names    = "must be a loopback address, such as 127.0.0.1:9811: the names of all pods and objects are not for the network"
	)
	fails(t, "serve", map[string]string{
		"--change-detection=watch":                      `--change-detection: Unsupported value: "watch": supported by this version: "Watch", "Cache", "Get"`,
		"--change-detection=":                           `--change-detection: Unsupported value: "": supported by this version: "Watch", "Cache", "Get"`,
		"--identity=Pod":                                `--identity: Unsupported value: "Pod": supported by this version: "plugin", "pod", "node"`,
		"--identity=node --cross-namespace":             "--cross-namespace: Forbidden: with --identity=node: a node may read only what the specs of its pods name, and these name objects of their own namespaces",
		"--identity=node --node-name=":                  "--node-name: Required value: or set NODE_NAME",
		"--identity=node --node-name=Node_1":            `--node-name: Invalid value: "Node_1": must be the name of a Node object: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
		"--default-spread=2h":                           "--default-spread: Invalid value: 2h0m0s: must be a duration from 1s to 1h, such as 5m, or 0s for none",
		"--max-volume-size=1Gi":                         `--max-total-size: Invalid value: "512Mi": must not be less than --max-volume-size, which is 1Gi`,
		"--max-total-size=16Mi":                         `--max-total-size: Invalid value: "16Mi": must not be less than --max-volume-size, which is 32Mi`,
		"--publish-wait=-1s":                            "--publish-wait: Invalid value: -1s: must not be negative",
		"--resync-interval=0":                           "--resync-interval: Invalid value: 0s: must be positive",
		"--profiling-address=:6060":                     `--profiling-address: Invalid value: ":6060": ` + profiles,
		"--profiling-address=localhost:6060":            `--profiling-address: Invalid value: "localhost:6060": ` + profiles, // whatever that resolves to
		"--profiling-address=6060":                      `--profiling-address: Invalid value: "6060": must be a loopback address and a port, such as 127.0.0.1:6060`,
		"--status-address=0.0.0.0:9811":                 `--status-address: Invalid value: "0.0.0.0:9811": ` + names,
		"--status-address=localhost:9811":               `--status-address: Invalid value: "localhost:9811": ` + names,
		"--status-address=:9811":                        `--status-address: Invalid value: ":9811": ` + names,
		"--status-address=[::ffff:10.0.0.1]:9811":       `--status-address: Invalid value: "[::ffff:10.0.0.1]:9811": ` + names,
		"--status-address=127.0.0.1":                    `--status-address: Invalid value: "127.0.0.1": must be a loopback address and a port, such as 127.0.0.1:9811`,
		"--startup-taint=x:Never --registration-dir=/r": `--startup-taint: Invalid value: "x:Never": must be the key of a taint, without value and effect: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
		"--startup-taint=x":                             "--startup-taint: needs --registration-dir: the taint goes when the kubelet has confirmed the registration",
		"--node-name=":                                  "--node-name: Required value: or set NODE_NAME",
		"--identity=none --node-name=": `--identity: Unsupported value: "none": supported by this version: "plugin", "pod", "node"` +
			"\n--node-name: Required value: or set NODE_NAME",
	})
}

func TestSizes(t *testing.T) {
	const form = "must be a positive quantity such as 32Mi"
	for _, test := range []struct {
		volume, total, cached string
		want                  sizes
		err                   string
	}{
		{volume: "32Mi", total: "512Mi", cached: "256Mi", want: sizes{32 << 20, 512 << 20, 256 << 20}},
		{volume: "1", total: "1e3", cached: "8", want: sizes{1, 1000, 8}},
		{volume: "1Mi", total: "1024Ki", cached: "1", want: sizes{1 << 20, 1 << 20, 1}},
		{volume: "1Mi", total: "1M", cached: "1", err: `--max-total-size: Invalid value: "1M": must not be less than --max-volume-size, which is 1Mi`},
		{volume: "1k", total: "1Gi", cached: "1Gi", want: sizes{1000, 1 << 30, 1 << 30}},
		{volume: "", total: "1", cached: "1", err: `--max-volume-size: Invalid value: "": ` + form},
		{volume: "0", total: "1", cached: "1", err: `--max-volume-size: Invalid value: "0": ` + form},
		{volume: "1", total: "-1Mi", cached: "1", err: `--max-total-size: Invalid value: "-1Mi": ` + form},
		{volume: "16MB", total: "big", cached: "0", err: `--max-volume-size: Invalid value: "16MB": ` + form + "\n" +
			`--max-total-size: Invalid value: "big": ` + form + "\n" + `--max-cached-size: Invalid value: "0": ` + form},
	} {
		o := &serveOptions{maxVolumeSize: test.volume, maxTotalSize: test.total, maxCachedSize: test.cached}
		got, err := o.sizes()
		if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err || err == nil && got != test.want {
			t.Errorf("%q, %q, %q: got %v, %v, want %s", test.volume, test.total, test.cached, got, err, test.err)
		}
	}
}

// A failed start is an error of run, whose text says what was tried.
func TestAStartThatFails(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", "")
	none := filepath.Join(t.TempDir(), "none")
	kubeconfig := kubeconfig(t)
	fails(t, "serve --http-address= --v=10", map[string]string{
		"--kubeconfig=" + none + " --max-volume-size=x": `...--max-volume-size: Invalid value: "x"`,
		"--kubeconfig=" + none:                          "...configure the client of the API server: ",
		"--kubeconfig=" + none + " --publish-wait=0":    "...configure the client of the API server: ",
		"": "...configure the client of the API server: ",
		"--kubeconfig=" + kubeconfig + " --identity=pod --kubelet-dir=" + none:  "..." + none,
		"--kubeconfig=" + kubeconfig + " --identity=node --kubelet-dir=" + none: "..." + none,
		"--kubeconfig=" + kubeconfig + " --kubelet-dir=" + none:                 "..." + none,
		"--kubeconfig=" + kubeconfig + " --driver-name=../x":                    "...mount options: Driver: Invalid value",
		"--kubeconfig=" + kubeconfig + " --selinux-context=a\x00b":              "...mount options: SELinuxContext: Invalid value",
		"--kubeconfig=" + kubeconfig + " --startup-taint=refvol.dev/starting --registration-dir=" + none + " --kubelet-dir=" + t.TempDir() +
			" --endpoint=unix://" + none + "/csi.sock": "...open the lock of a socket: open " + none + "/csi.sock.lock",
	})
}

// TestReportedInterval: a change that no watch reports comes with the next resync, which the commands that wait must know.
func TestReportedInterval(t *testing.T) {
	for detection, want := range map[manager.ChangeDetection]time.Duration{manager.Watch: 0, manager.Cache: time.Minute, manager.Get: time.Minute} {
		o := &serveOptions{changeDetection: string(detection), resyncInterval: time.Minute}
		expect.Equal(t, string(detection), o.reportedInterval(), want)
	}
}

func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"), 0o600))
	return path
}

// TestStatusCommand: what the command prints of a plugin that answers, and how it ends.
func TestStatusCommand(t *testing.T) {
	reporter := &report.Reporter{
		Driver: "csi.refvol.dev", Node: "node-1",
		Volumes: func(yield func(publisher.VolumeStatus) bool) { yield(publisher.VolumeStatus{VolumeID: "v1"}) },
		Objects: func(func(manager.ObjectStatus) bool) {},
		Refused: func() []status.Refusal {
			return []status.Refusal{{VolumeID: "v1", Name: "settings", Code: "NotFound", Message: "no key"}}
		},
		MissingRights: func() []string { return nil }, NotReady: func() []string { return nil },
	}
	server := httptest.NewServer(status.Handler(reporter.Collect))
	defer server.Close()
	for output, want := range map[string]string{"": "no key", "wide": "no key", "json": `"node": "node-1"`, "yaml": "node: node-1\n"} {
		var out bytes.Buffer
		err := (&statusOptions{address: server.Listener.Addr().String(), output: output}).run(t.Context(), &out)
		if err == nil || exitStatus(err) != 1 || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "VOLUME-ID") != (output == "wide") {
			t.Errorf("%q: %v\n%s", output, err, &out)
		}
	}
}
