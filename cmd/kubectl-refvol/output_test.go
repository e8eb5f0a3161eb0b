package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

func statusWith(t *testing.T, args ...string) (*statusOptions, status.Table) {
	t.Helper()
	cmd, opts := &cobra.Command{}, &statusOptions{cluster: newClusterOptions(nil)}
	opts.output = newOutput(cmd, outputWide, outputName)
	fs := cmd.Flags()
	fs.StringVar(&opts.sortBy, "sort-by", "", "")
	fs.StringVarP(&opts.namespace, "namespace", "n", "", "")
	fs.BoolVar(&opts.abnormal, "abnormal", false, "")
	must.Do(t, errors.Join(cmd.ParseFlags(args), opts.validate()))
	return opts, status.Table{NoHeaders: *opts.output.NoHeaders, Abnormal: opts.abnormal}
}

func printed(t *testing.T, s *clusterStatus, args ...string) string {
	t.Helper()
	opts, table := statusWith(t, args...)
	var out bytes.Buffer
	must.Do(t, opts.print(&out, s, table))
	return out.String()
}

// threePods returns a status with pods of one name in two namespaces, on two nodes.
func threePods() *clusterStatus {
	volume := func(namespace, name string, size int64) status.Volume {
		return status.Volume{VolumeID: namespace + name, Name: "v", Pod: status.Pod{Namespace: namespace, Name: name}, Bytes: size, Condition: "Current", Objects: []status.VolumeObject{}}
	}
	report := func(node string, volumes ...status.Volume) fleet.Node {
		r := &status.Report{Header: status.Header{Node: node, Version: "a\x1b[2J\tb"}, Volumes: volumes}
		r.Number()
		return fleet.Node{Name: node, Plugin: "plugin-" + node, Report: r}
	}
	return newClusterStatus("csi.refvol.dev", &fleet.Survey{Nodes: []fleet.Node{
		report("n1", volume("shop", "web-0", 3), volume("bank", "web-0", 20), volume("bank", "web-0", 20)),
		report("n2", volume("bank", "web-1", 1)),
	}})
}

// TestFormats: kubectl's formats, as kubectl prints them. Only text of plugins is changed, because it may control a terminal.
func TestFormats(t *testing.T) {
	file := filepath.Join(t.TempDir(), "columns")
	must.Do(t, os.WriteFile(file, []byte("POD SIZE\n.pod.name .bytes\n"), 0o600))
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", `jsonpath={range .nodes[*]}{.node}{"\t"}{.plugin}{"\n"}{end}`}, "n1\tplugin-n1\nn2\tplugin-n2\n"},
		{[]string{"-o", `jsonpath={.nodes[0].report.version}{"\x00"}`}, "a\\u001b[2J\\u0009b\x00"},
		{[]string{"-o", `go-template={{range .nodes}}{{.node}}{{"\t"}}{{len .report.volumes}}{{"\n"}}{{end}}`}, "n1\t3\nn2\t1\n"},
		{[]string{"--template", `{{(index .nodes 0).report.version}}`}, `a\u001b[2J\u0009b`},
		{[]string{"-o", "name"}, "pod/web-0 --namespace=bank\npod/web-1 --namespace=bank\npod/web-0 --namespace=shop\n"},
		{[]string{"-o", "name", "-n", "bank"}, "pod/web-0\npod/web-1\n"},
		{[]string{"-o", "custom-columns=N:.node,POD:.pod.name", "--sort-by=.bytes"}, "N     POD\nn2    web-1\nn1    web-0\nn1    web-0\nn1    web-0\n"},
		{[]string{"-o", "custom-columns-file=" + file, "--sort-by={.bytes}"}, "POD     SIZE\nweb-1   1\nweb-0   3\nweb-0   20\nweb-0   20\n"},
		{[]string{"--no-headers", "--sort-by=.bytes"}, `
yes  n2  bank/web-1  v  Current  0s  -  1   -  -
yes  n1  shop/web-0  v  Current  0s  -  3   -  -
yes  n1  bank/web-0  v  Current  0s  -  20  -  -
yes  n1  bank/web-0  v  Current  0s  -  20  -  -
`[1:]},
	} {
		s := threePods()
		if slices.Contains(test.args, "bank") {
			s.keepNamespace("bank")
		}
		if got := printed(t, s, test.args...); got != test.want {
			t.Errorf("%q: got\n%q, want\n%q", test.args, got, test.want)
		}
	}
	opts, table := statusWith(t, "--sort-by=.sise")
	if err := opts.print(io.Discard, threePods(), table); err == nil || !strings.HasPrefix(err.Error(), `--sort-by: couldn't find any field with path "{.sise}"`) {
		t.Errorf("got %v", err)
	}
	if text := printed(t, threePods(), "-o", "yaml"); strings.Contains(text, "\x1b") || !strings.HasPrefix(text, "apiVersion: status.refvol.dev/") {
		t.Errorf("yaml: %q", text)
	}
}

// TestWatchDocuments: with -w, each change prints one document. A look without a change prints none.
func TestWatchDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts, table := statusWith(t, "-o", "json")
		ctx, interrupt := context.WithCancel(t.Context())
		looks := 0
		collect := func() (*clusterStatus, error) {
			s := threePods()
			v := &s.Nodes[0].Report.Volumes[0]
			switch looks++; looks {
			case 2: // no change
			case 3, 4:
				v.Condition, v.Abnormal = "VolumeUpdateFailed", true
			case 5:
				s.Nodes = s.Nodes[:1]
			case 6:
				interrupt()
				return nil, ctx.Err()
			}
			return s, nil
		}
		var out bytes.Buffer
		must.Do(t, opts.follow(ctx, collect, table, &out, io.Discard))
		var got string
		for documents := json.NewDecoder(&out); documents.More(); {
			var document clusterStatus
			must.Do(t, documents.Decode(&document))
			got += " " + document.Nodes[0].Report.Volumes[0].Condition
		}
		if got != " Current VolumeUpdateFailed Current" {
			t.Errorf("printed %q in %d looks", got, looks)
		}
	})
}

// TestNamesOfRollouts: -o name, --sort-by and custom columns work for lists, too.
func TestNamesOfRollouts(t *testing.T) {
	item := func(namespace string, takers int) rolloutItem {
		return rolloutItem{Object: fleet.Object{Kind: "Secret", Namespace: namespace, Name: "db"}, Takers: takers, NotReady: []string{}}
	}
	for format, want := range map[string]string{
		"name":                              "secret/db --namespace=bank\nsecret/db --namespace=shop\n",
		"custom-columns=IN:.namespace":      "IN\nbank\nshop\n",
		`jsonpath={.items[*].takers}{"\n"}`: "1 2\n",
	} {
		list := &rolloutList{status.APIVersion, rolloutListKind, []rolloutItem{item("shop", 2), item("bank", 1)}}
		to := newOutput(&cobra.Command{}, outputName)
		*to.OutputFormat = format
		var out bytes.Buffer
		if err := errors.Join(to.validate(), list.print(&out, to, ".takers", "")); err != nil || out.String() != want {
			t.Errorf("%s: got %q, %v, want %q", format, out.String(), err, want)
		}
	}
}

// twoNamespaces returns a status with a volume in each of two namespaces. Both name the same object.
func twoNamespaces() *clusterStatus {
	ca := &status.Object{Kind: "ConfigMap", Namespace: "shop", Name: "ca", State: "present"}
	db := &status.Object{Kind: "Secret", Namespace: "bank", Name: "db", State: "denied"}
	volume := func(namespace, version string, abnormal bool, objects ...*status.Object) status.Volume {
		v := status.Volume{VolumeID: namespace, Name: "settings", Pod: status.Pod{Namespace: namespace, Name: "pod"}, Abnormal: abnormal}
		for _, o := range objects {
			v.Objects = append(v.Objects, status.VolumeObject{Object: o, Shown: &status.Version{UID: "u", ResourceVersion: version}})
		}
		return v
	}
	report := &status.Report{Volumes: []status.Volume{volume("bank", "8", true, db, ca), volume("shop", "9", false, ca)}}
	report.Number()
	return newClusterStatus("csi.refvol.dev", &fleet.Survey{Nodes: []fleet.Node{{Name: "n", Report: report}}})
}

// TestObjectsOfVolumes: in custom-columns, a volume has the fields of its objects, and not their places. What is left out with its volume is
// not printed, and the rest can be read.
func TestObjectsOfVolumes(t *testing.T) {
	const spec = "custom-columns=NODE:.node,NAMES:.objects[*].name,STATES:.objects[*].state,SHOWN:.objects[*].shown.resourceVersion,PLACES:.objects[*].object"
	if got := strings.Join(strings.Fields(printed(t, twoNamespaces(), "-o", spec, "--no-headers")), " "); got != "n db,ca denied,present 8,8 <none> n ca present 9 <none>" {
		t.Errorf("got %s", got)
	}
	for what, remove := range map[string]func(*clusterStatus){
		"shop ca 9": func(s *clusterStatus) { s.keepNamespace("shop") },
		"bank db 8": func(s *clusterStatus) { *s = *s.abnormal() },
	} {
		s := twoNamespaces()
		remove(s)
		report := s.Nodes[0].Report
		report.APIVersion, report.Kind = status.APIVersion, status.Kind
		text := must.Get(json.Marshal(report))(t)
		read, err := status.Read(bytes.NewReader(text))
		if err != nil || !reflect.DeepEqual(read, report) {
			t.Errorf("%s: %v", text, err)
		}
		v := read.Volumes[0]
		if got := v.Pod.Namespace + " " + v.Objects[0].Name + " " + v.Objects[0].Shown.ResourceVersion; got != what {
			t.Errorf("got %s, want %s", got, what)
		}
		if strings.Contains(string(text), `"db"`) != (what == "bank db 8") {
			t.Errorf("%s has the object of another namespace", text)
		}
	}
}

// TestWatchPrintsNodesAgain: a node's problem is printed each time it comes, and the volumes of a node that answers again are not.
func TestWatchPrintsNodesAgain(t *testing.T) {
	table := status.Table{NoHeaders: true, Printed: &status.Printed{}}
	var lines []string
	for _, reason := range []fleet.Reason{"", fleet.Unreachable, fleet.Unreachable, fleet.NoPlugin, fleet.Unreachable, "", fleet.Unreachable} {
		s := twoNamespaces()
		if n := &s.Nodes[0]; reason != "" {
			n.Report, n.Problem = nil, &fleet.Problem{Reason: reason}
		} else {
			n.Report.Node = n.Node
		}
		var out bytes.Buffer
		must.Do(t, s.writeTable(&out, table))
		lines = append(lines, strconv.Itoa(strings.Count(out.String(), "\n")))
	}
	if got := strings.Join(lines, " "); got != "2 1 0 1 1 0 1" {
		t.Errorf("the looks print %s lines", got)
	}
}

// TestVerdictNamesWhatDoesNotLag: each group of volumes and pods that are no laggards has its own line.
func TestVerdictNamesWhatDoesNotLag(t *testing.T) {
	pod := func(name string) status.Pod { return status.Pod{Namespace: "shop", Name: name} }
	waiting := slices.Repeat([]fleet.UnpublishedPod{{Node: "n", Pod: pod("w")}}, 7)
	v := &fleet.Result{
		ObservedAt: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		APIVersion: status.APIVersion, Kind: fleet.ResultKind, Object: fleet.Object{Kind: "Secret", Namespace: "shop", Name: "db"}, Current: &status.Version{UID: "u", ResourceVersion: "8"}, Converged: true,
		Withdrawn:     []fleet.WithdrawnVolume{{Node: "n", Pod: pod("borrower\x1b[2J"), Volume: "settings"}},
		WithoutPlugin: waiting,
		NotPublished:  []fleet.UnpublishedPod{{Pod: pod("late")}},
	}
	var out bytes.Buffer
	must.Do(t, printVerdict(&out, true, v))
	for _, want := range []string{
		"2026-01-01T12:00:00Z Converged: yes. ",
		"\nVolumes from which the object was withdrawn, because their pods may not have it any more: volume settings of shop/borrower\\u001b[2J.\n",
		"\nPods that wait on a node without the plugin, so that nothing is mounted for them: shop/w, shop/w, shop/w, shop/w, shop/w, and 2 more.\n",
		"\nPods whose volumes are not published yet, or wait for something, and that get the current version then: shop/late.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	}
}
