package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// statusWith returns the options of status with some flags of its output.
func statusWith(t *testing.T, args ...string) (*statusOptions, status.Table) {
	t.Helper()
	cmd, opts := &cobra.Command{}, &statusOptions{cluster: newClusterOptions(nil)}
	opts.output = newOutput(cmd, outputWide, outputName)
	fs := cmd.Flags()
	fs.StringVar(&opts.sortBy, "sort-by", "", "")
	fs.StringVarP(&opts.namespace, "namespace", "n", "", "")
	fs.BoolVar(&opts.abnormal, "abnormal", false, "")
	if err := errors.Join(cmd.ParseFlags(args), opts.validate()); err != nil {
		t.Fatal(err)
	}
	return opts, status.Table{NoHeaders: *opts.output.NoHeaders, Abnormal: opts.abnormal}
}

// printed returns what status prints with some flags.
func printed(t *testing.T, s *clusterStatus, args ...string) string {
	t.Helper()
	opts, table := statusWith(t, args...)
	var out bytes.Buffer
	if err := opts.print(&out, s, table); err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(file, []byte("POD SIZE\n.pod.name .bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", `jsonpath={range .nodes[*]}{.node}{"\t"}{.plugin}{"\n"}{end}`}, "n1\tplugin-n1\nn2\tplugin-n2\n"},
		{[]string{"-o", `jsonpath={.kind}`}, "ClusterStatus"},
		{[]string{"-o", `jsonpath={.nodes[0].report.version}{"\x00"}`}, "a\\u001b[2J\\u0009b\x00"},
		{[]string{"-o", `jsonpath-as-json={.nodes[*].node}`}, "[\n    \"n1\",\n    \"n2\"\n]\n"},
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
		if strings.Contains(strings.Join(test.args, " "), "-n bank") {
			s.keepNamespace("bank")
		}
		if got := printed(t, s, test.args...); got != test.want {
			t.Errorf("%q: got\n%q, want\n%q", test.args, got, test.want)
		}
	}
	if text := printed(t, threePods(), "-o", "yaml"); strings.Contains(text, "\x1b") || !strings.HasPrefix(text, "apiVersion: status.refvol.dev/") {
		t.Errorf("yaml: %q", text)
	}
}

// TestSortByUnknownField: it is an error, as in kubectl.
func TestSortByUnknownField(t *testing.T) {
	opts, table := statusWith(t, "--sort-by=.sise")
	if err := opts.print(io.Discard, threePods(), table); err == nil || !strings.HasPrefix(err.Error(), `--sort-by: couldn't find any field with path "{.sise}"`) {
		t.Errorf("got %v", err)
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
			case 2, 4: // no change
			case 3:
				v.Condition, v.Abnormal = "VolumeUpdateFailed", true
			case 5:
				s.Nodes = s.Nodes[:1]
			case 6:
				interrupt()
				return nil, ctx.Err()
			}
			if looks == 4 {
				v.Condition, v.Abnormal = "VolumeUpdateFailed", true
			}
			return s, nil
		}
		var out bytes.Buffer
		if err := opts.follow(ctx, collect, table, &out, io.Discard); err != nil {
			t.Error(err)
		}
		var got []string
		for documents := json.NewDecoder(&out); ; {
			var document clusterStatus
			err := documents.Decode(&document)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, document.Nodes[0].Report.Volumes[0].Condition)
		}
		if strings.Join(got, " ") != "Current VolumeUpdateFailed Current" {
			t.Errorf("printed %q in %d looks", got, looks)
		}
	})
}

// TestNamesOfRollouts: -o name, --sort-by and custom columns work for lists, too.
func TestNamesOfRollouts(t *testing.T) {
	cmd := &cobra.Command{}
	item := func(namespace string, takers int) rolloutItem {
		return rolloutItem{Object: fleet.Object{Kind: "Secret", Namespace: namespace, Name: "db"}, Takers: takers, NotReady: []string{}}
	}
	for format, want := range map[string]string{
		"name":                              "secret/db --namespace=bank\nsecret/db --namespace=shop\n",
		"custom-columns=IN:.namespace":      "IN\nbank\nshop\n",
		`jsonpath={.items[*].takers}{"\n"}`: "1 2\n",
	} {
		list := &rolloutList{status.APIVersion, rolloutListKind, []rolloutItem{item("shop", 2), item("bank", 1)}}
		to := newOutput(cmd, outputName)
		*to.OutputFormat = format
		var out bytes.Buffer
		if err := errors.Join(to.validate(), list.print(&out, to, ".takers", "")); err != nil || out.String() != want {
			t.Errorf("%s: got %q, %v, want %q", format, out.String(), err, want)
		}
		cmd = &cobra.Command{}
	}
}
