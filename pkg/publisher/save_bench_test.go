package publisher

import (
	"os"
	"testing"
)

// BenchmarkSaveRecord is what an update of a volume costs for its record, where the records
// are in memory, if they can be.
func BenchmarkSaveRecord(b *testing.B) {
	dir, err := os.MkdirTemp("/dev/shm", "refvol-records-")
	if err != nil {
		dir = b.TempDir()
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	records, err := openRecords(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := records.close(); err != nil {
			b.Error(err)
		}
	})
	r := &record{VolumeID: "v1", Attributes: map[string]string{"configMap": "app"}}
	b.ReportAllocs()
	for b.Loop() {
		r.Size++
		if _, err := records.save(r); err != nil {
			b.Fatal(err)
		}
	}
}
