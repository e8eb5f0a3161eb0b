package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/leak"
)

// kubeconfigOf returns the path of a kubeconfig whose API server does not answer. more are further fields of its context.
func kubeconfigOf(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, path, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"+
		"contexts: [{name: c, context: {cluster: c"+more+"}}]\n")
	return path
}

// manifestOf returns the path of a file with a Pod that has one volume.
func manifestOf(t *testing.T, name, attributes string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	writeFile(t, path, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  containers: [{name: app, envFrom: [{secretRef: {name: db}}]}]
  volumes:
  - {name: v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {%s}}}
`, attributes))
	return path
}

func TestCheck(t *testing.T) {
	good, bad := manifestOf(t, "good.yaml", "secret: db"), manifestOf(t, "bad.yaml", "secret: db, uid: x, gid: x")
	worse := manifestOf(t, "worse.yaml", "uid: x")
	unnamed, across := manifestOf(t, "unnamed.yaml", "secret: tls"), manifestOf(t, "across.yaml", "secret: db, namespace: other")
	for _, test := range []struct {
		args []string
		err  string
		want []string
	}{
		{args: []string{"-f", good}, want: []string{"default    pod/app   secret/db  all   no        spec.volumes[0].csi.volumeAttributes.secret\n", "1 workload, 2 references, 0 warnings, 0 problems\n"}},
		{args: []string{"--filename", good, "--namespace", "ns"}, want: []string{"ns         pod/app"}},
		{args: []string{"-f", bad}, err: "check: 2 problems", want: []string{"problem: " + bad + ", document 1: Pod default/app: spec.volumes[0].csi.volumeAttributes.uid: Invalid value"}},
		{args: []string{"-f", good, "-f", worse}, err: "check: 2 problems", want: []string{"2 workloads, 3 references, 0 warnings, 2 problems\n"}},
		{args: []string{"-f", good, "--identity=node"}, want: []string{"1 workload, 2 references, 0 warnings, 0 problems\n"}},
		{args: []string{"-f", unnamed, "--identity=node"}, err: "check: 1 problem", want: []string{
			"problem: " + unnamed + ", document 1: Pod default/app: spec.volumes[0].csi.volumeAttributes.secret: the pod's spec does not name Secret \"default/tls\" itself, which --identity=node of the plugin needs: add a volume of the pod that names it, and show that by a volume source\n",
		}},
		{args: []string{"-f", across, "--identity=node"}, err: "check: 1 problem", want: []string{
			"spec.volumes[0].csi.volumeAttributes.secret: an object of another namespace: no volume shows it with --identity=node of the plugin\n", " 0 warnings, 1 problem\n",
		}},
		{args: []string{"-f", bad, "--driver-name", "other.example.com"}, want: []string{"1 workload, 1 reference, 1 warning, 0 problems\n"}},
	} {
		out, _, err := runCommand(t, append([]string{"check"}, test.args...)...)
		if status := exitStatus(err); message(err) != test.err || status != 0 != (err != nil) || status == unknown {
			t.Errorf("%q: %v, status %d, want %q", test.args, err, status, test.err)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q: %q is not in\n%s", test.args, want, out)
			}
		}
	}
}

// TestCheckWithoutAnAPIServer: that there is no answer is no problem of the manifests.
func TestCheckWithoutAnAPIServer(t *testing.T) {
	kubeconfig := kubeconfigOf(t, "")
	for _, attributes := range []string{"secret: db", "secret: db, uid: x"} {
		_, _, err := runCommand(t, "check", "-f", manifestOf(t, "f.yaml", attributes), "--live", "--kubeconfig", kubeconfig)
		if exitStatus(err) != unknown {
			t.Errorf("%s: status %d: %v", attributes, exitStatus(err), err)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	file := manifestOf(t, "f.yaml", "secret: db")
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "must specify one of -f, -k and --label (--label=live -n NAMESPACE checks a live label)"},
		{[]string{"--live", "-n", "shop"}, "must specify one of -f, -k and --label (--label=live -n NAMESPACE checks a live label)"},
		{[]string{"--label=restarts", "-n", "shop"}, `--label: "restarts" is none of restart, live`},
		{[]string{"--label=restart"}, "--label needs -n NAMESPACE"},
		{[]string{"--label=restart", "-n", "shop", "-f", file}, "--label checks the pods of a namespace, and can't be used with -f or -k"},
		{[]string{"--label=restart", "-n", "refvol-system"}, "the label refvol.dev/restart changes nothing in namespace refvol-system"},
		{[]string{"--label=live", "-n", "kube-system"}, "the label refvol.dev/live changes nothing in namespace kube-system"},
		{[]string{"--label=live", "-n", "shop", "--max-volume-size=32MB!"}, `--max-volume-size: "32MB!" is not a positive quantity, such as 32Mi`},
		{[]string{"-f", file, "--identity=pods"}, `--identity: "pods" is none of plugin, pod, node`},
		{[]string{"-f", file, "--change-detection=watch"}, `--change-detection: "watch" is none of Watch, Cache, Get`},
		{[]string{"-f", "/does/not/exist"}, "read manifests: lstat /does/not/exist: no such file or directory"},
		{[]string{"-f", file, "--live", "--kubeconfig=/does/not/exist"}, "find the kubeconfig's namespace: stat /does/not/exist: no such file or directory"},
		{[]string{file}, `unknown command "` + file + `" for "kubectl refvol check"`},
	} {
		out, _, err := runCommand(t, append([]string{"check"}, test.args...)...)
		if message(err) != test.want || out != "" || exitStatus(err) != 2 {
			t.Errorf("%q: %v, status %d, %q, want %q", test.args, err, exitStatus(err), out, test.want)
		}
	}
}

// The example in the documents equals the command's output.
func TestCheckExample(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	must(t, err)
	block := func(language string) string {
		blocks := doclines.Blocks(string(text), language)
		if len(blocks) == 0 {
			t.Fatalf("docs/check.md has no %s", language)
		}
		return blocks[0]
	}
	t.Chdir(t.TempDir())
	writeFile(t, "app.yaml", block("yaml"))
	args, isOurs := strings.CutPrefix(block("sh"), "kubectl refvol check ")
	if !isOurs {
		t.Fatalf("docs/check.md runs %s", block("sh"))
	}
	out, _, err := runCommand(t, append([]string{"check"}, strings.Fields(args)...)...)
	got := out + "Error: " + message(err) + "\n"
	if want := block("text"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Manifests without a namespace get the kubeconfig's, or that of -n.
func TestCheckNamespace(t *testing.T) {
	file := manifestOf(t, "f.yaml", "secret: db")
	for context, want := range map[string]string{"": "default", ", namespace: team": "team"} {
		kubeconfig := kubeconfigOf(t, context)
		for _, flag := range [][]string{nil, {"-n", "ns"}} {
			out, _, err := runCommand(t, append([]string{"check", "-f", file, "--kubeconfig", kubeconfig}, flag...)...)
			if flag != nil {
				want = "ns"
			}
			if err != nil || !strings.Contains(out, "\n"+want+" ") {
				t.Errorf("%s, %q: %v, want %s\n%s", context, flag, err, want, out)
			}
		}
	}
}

// TestCheckInputs: files are found as kubectl finds them, and each is named.
func TestCheckInputs(t *testing.T) {
	dir := t.TempDir()
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"
	must(t, os.MkdirAll(filepath.Join(dir, "below"), 0o700))
	writeFile(t, filepath.Join(dir, "a.yaml"), fmt.Sprintf(pod, "a"))
	writeFile(t, filepath.Join(dir, "notes.txt"), "no manifest")
	writeFile(t, filepath.Join(dir, "below", "b.json"), `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}}`)
	writeFile(t, filepath.Join(dir, "kustomization.yaml"), "resources: [a.yaml]\nnamespace: made\n")
	kubectl := t.TempDir()
	t.Setenv("PATH", kubectl+string(os.PathListSeparator)+os.Getenv("PATH"))
	writeFile(t, filepath.Join(kubectl, "kubectl"), fmt.Sprintf(`#!/bin/sh
if [ "$*" != "kustomize -- %s" ]; then echo "password: %s" >&2; exit 1; fi
printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: made}\n'
`, dir, leak.Value))
	must(t, os.Chmod(filepath.Join(kubectl, "kubectl"), 0o700))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/c.yaml" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprintf(w, pod, "c")
	}))
	defer server.Close()
	for name, test := range map[string]struct {
		args []string
		want string
		err  string
	}{
		"a directory":                  {[]string{"-f", dir}, "a", "check: 1 problem"}, // the kustomization has no apiVersion
		"recursively":                  {[]string{"-R", "-f", dir}, "a b", "check: 1 problem"},
		"below":                        {[]string{"-f", filepath.Join(dir, "below")}, "b", ""},
		"a kustomization":              {[]string{"-k", dir}, "made/a", ""},
		"a URL":                        {[]string{"-f", server.URL + "/c.yaml"}, "c", ""},
		"no URL":                       {[]string{"-f", server.URL + "/d.yaml"}, "", `read manifests: unable to read URL "` + server.URL + `/d.yaml", server reported 404 Not Found`},
		"no manifest":                  {[]string{"-f", t.TempDir()}, "", "read manifests: error reading ["},
		"a kustomization that is none": {[]string{"-k", filepath.Join(dir, "below")}, "", "build the kustomization " + filepath.Join(dir, "below") + ": run `kubectl kustomize "},
		"both":                         {[]string{"-k", dir, "-f", dir}, "", "the -k flag can't be used with -f or -R"},
	} {
		out, _, err := runCommand(t, append([]string{"check", "-o", "jsonpath={range .workloads[*]}{.namespace}/{.name} {end}"}, test.args...)...)
		got := strings.TrimSpace(strings.ReplaceAll(out, "default/", ""))
		if got != test.want || !strings.HasPrefix(message(err), test.err) || (err == nil) != (test.err == "") {
			t.Errorf("%s: got %q, %v; want %q, %s", name, got, err, test.want, test.err)
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// TestCheckWithoutKubectl: the error says what -k needs.
func TestCheckWithoutKubectl(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, _, err := runCommand(t, "check", "-k", "overlay")
	const want = "build the kustomization overlay: -k runs kubectl: executable file not found in $PATH"
	if message(err) != want || exitStatus(err) != unknown {
		t.Errorf("got %v, status %d, want %s", err, exitStatus(err), want)
	}
}

// labelServer is an API server with one pod, which names the Secret db. It answers dry runs as the policy of the label live does. Nobody may
// list nodes.
type labelServer struct{ t *testing.T }

func (s *labelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	value := base64.StdEncoding.EncodeToString([]byte(leak.Value))
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/namespaces/shop/pods":
		_, _ = fmt.Fprint(w, `{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "web", "namespace": "shop"}, "spec": {
			"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "db"}}], "volumeMounts": [{"name": "db", "mountPath": "/db"}]}],
			"volumes": [{"name": "db", "secret": {"secretName": "db"}}]}}]}`)
	case "POST /api/v1/namespaces/shop/pods":
		s.create(w, r)
	case "GET /api/v1/namespaces/shop/secrets/db":
		_, _ = fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "shop"}, "data": {"a": %q, "b": %q}}`, value, value)
	case "GET /api/v1/nodes":
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, `{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "no"}`)
	}
}

func (s *labelServer) create(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	pod, ok := object.(*corev1.Pod)
	if !ok || r.URL.Query().Get("dryRun") != metav1.DryRunAll {
		s.t.Errorf("sent %T with %s: %v", object, r.URL.RawQuery, err)
		return
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	if pod.Labels["refvol.dev/live"] == "true" {
		pod.Spec.Containers[0].VolumeMounts[0].Name = "refvol-db"
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "refvol-db", VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: driverName, ReadOnly: new(true), VolumeAttributes: map[string]string{"volume": "db"}},
		}})
	}
	if err := json.NewEncoder(w).Encode(pod); err != nil {
		s.t.Error(err)
	}
}

// TestCheckLabel: a label is evaluated by dry runs of the namespace's pods, and with the sizes of their objects, whose values are not printed.
// What the policies really do, and nodes that are too old, are tested in e2e/suites/manifests.
func TestCheckLabel(t *testing.T) {
	server := httptest.NewServer(&labelServer{t})
	defer server.Close()
	for _, test := range []struct {
		args   string
		want   string
		err    string
		status int
	}{
		{"--label=live", "POD  OWNER  PODS  CHANGES\nweb  -      1     db\n\n1 pod in namespace shop: 1 would change, 0 could not start, 0 not known\n", "", 0},
		{"--label=live --max-volume-size=4Ki -o jsonpath={.kind}{.pods[*].problems}", `LabelReport["has 2 keys`, "check: pods that could not start: 1", 1},
		{"--label=restart -o jsonpath={.nodesUnread}{.policy}", "trueno", "check: the component of the label refvol.dev/restart is not installed", 2},
	} {
		out, _, err := runCommand(t, append([]string{"check", "-n", "shop", "--server", server.URL}, strings.Fields(test.args)...)...)
		if !strings.HasPrefix(strings.ReplaceAll(out, "volume db: ", ""), test.want) || message(err) != test.err || exitStatus(err) != test.status {
			t.Errorf("%s: got %v, status %d\n%s\nwant\n%s", test.args, err, exitStatus(err), out, test.want)
		}
		if err := leak.Check("the output", out); err != nil {
			t.Error(err)
		}
	}
}
