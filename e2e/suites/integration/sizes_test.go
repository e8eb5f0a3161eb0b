package integration

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

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
			v := n.short("app")
			n.mustPublish(v)
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

// Paths of items may have elements as long as a file system takes, and no longer.
func TestLongestPaths(t *testing.T) {
	n := newNode(t)
	element := func(c string, length int) string { return strings.Repeat(c, length) }
	path := element("a", longestElement) + "/" + element("b", longestElement) + "/" + element("c", longestElement)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	v := n.volume(map[string]string{"configMap": "app", "items": "[{key: key, path: " + path + "}]"})
	n.mustPublish(v)
	n.wantContent(v, path, value)
	value = n.canary()
	n.configMap("app", map[string]string{"key": value})
	n.arrives(v, path, value, soon)
	n.mustUnpublish(v)
	long := n.volume(map[string]string{"configMap": "app", "items": "[{key: key, path: " + element("a", longestElement+1) + "}]"})
	wantStatus(t, n.Publish(t.Context(), long), codes.InvalidArgument, "items[0].path", "255")
	n.wantNothingLeft()
}

// What does not fit the default limit is refused with both sizes.
func TestTooManyKeysForTheDefaultLimit(t *testing.T) {
	n := newNode(t)
	data := make(map[string]string, 5000)
	for i := range 5000 {
		data[fmt.Sprint("key-", i)] = "x"
	}
	n.configMap("app", data)
	wantStatus(t, n.Publish(t.Context(), n.short("app")), codes.OutOfRange, "20480000 bytes", "16777216 bytes")
	n.wantNothingLeft()
}

// An update over a limit of the volume is refused as a whole, and the next one that
// fits is not held up by it.
func TestUpdateOverTheLimit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		data map[string]string
		text string
	}{
		{"bytes", map[string]string{"key": string(make([]byte, 128<<10))}, "take 131072 bytes of memory, more than the 65536 bytes that a volume may have (--max-volume-size)"},
		{"inodes", emptyKeys(1000), "take 2150 inodes, more than the 1088 that a volume may have"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, "--max-volume-size=64Ki")
			value := n.canary()
			n.configMap("app", map[string]string{"key": value})
			v := n.short("app")
			n.mustPublish(v)
			n.configMap("app", tc.data)
			n.wantProblem(v, tc.text)
			n.wantContent(v, "key", value)
			// A new volume of the same object is refused with the same words.
			wantStatus(t, n.Publish(t.Context(), n.short("app")), codes.OutOfRange, tc.text)
			value = n.canary()
			n.configMap("app", map[string]string{"key": value})
			n.arrives(v, "key", value, afterCause)
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}

func emptyKeys(count int) map[string]string {
	data := make(map[string]string, count)
	for i := range count {
		data[fmt.Sprint("key-", i)] = ""
	}
	return data
}
