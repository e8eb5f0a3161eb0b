package volume

import (
	"fmt"
	"strings"
	"testing"
)

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		items := make([]string, n)
		for i := range items {
			items[i] = fmt.Sprintf("{key: key-%d, path: conf/key-%d, mode: 0440}", i, i)
		}
		attributes := map[string]string{"sources": "- configMap: {name: app, items: [" + strings.Join(items, ", ") + "]}\n"}
		b.Run(fmt.Sprintf("items=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(attributes, testPod()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
