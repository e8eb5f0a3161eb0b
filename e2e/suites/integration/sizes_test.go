package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// mostBytes is what the API server allows the keys and values of one object.
	mostBytes = 1 << 20
	// longestKey is the longest key that it allows, longestElement the longest name of
	// a file.
	longestKey, longestElement = 253, 255
)

// The largest objects that the API server takes are published, updated and unpublished
// like any.
func TestLargestObjects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		data func(n *node) map[string]string
	}{
		{"one file of 1 MiB", nil, func(n *node) map[string]string {
			value := n.canary()
			return map[string]string{"key": value + strings.Repeat("x", mostBytes-len("key")-len(value))}
		}},
		// Each of them takes a page.
		{"5000 keys", []string{"--max-volume-size=32Mi"}, func(n *node) map[string]string {
			data := make(map[string]string, 5000)
			for i := range 5000 {
				data[fmt.Sprint("key-", i)] = fmt.Sprint(i)
			}
			data["key-0"] = n.canary()
			return data
		}},
		{"longest names of keys", nil, func(n *node) map[string]string {
			data := make(map[string]string)
			for i := range 100 {
				data[strings.Repeat("k", longestKey-3)+fmt.Sprintf("%03d", i)] = n.canary()
			}
			return data
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, tc.args...)
			data := tc.data(n)
			n.configMap("app", data)
			v := n.published("app")
			if err := n.showsJust(v, data); err != nil {
				t.Error(err)
			}
			data = tc.data(n)
			n.configMap("app", data)
			harness.Eventually(t, soon, func() error { return n.showsJust(v, data) })
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}
