package mount_test

import "testing"

// BenchmarkPublish is what a publish costs: make, attach, and unmount again.
func BenchmarkPublish(b *testing.B) {
	n := newNode(b)
	target := n.target("1")
	for b.Loop() {
		v, err := n.Create(n.ctx(), params("v1"))
		n.must(err)
		n.must(v.Attach(n.ctx(), target))
		n.must(v.Close())
		b.StopTimer()
		n.must(n.Unmount(n.ctx(), "v1", target))
		b.StartTimer()
	}
}

// BenchmarkReopen is what each update of a volume costs before its first byte.
func BenchmarkReopen(b *testing.B) {
	n := newNode(b)
	target := n.target("1")
	n.publish("v1", target)
	for b.Loop() {
		v, err := n.Reopen(n.ctx(), "v1", target)
		n.must(err)
		n.must(v.Close())
	}
}

func BenchmarkCheck(b *testing.B) {
	n := newNode(b)
	target := n.target("1")
	n.publish("v1", target)
	for b.Loop() {
		n.must(n.Check(n.ctx(), "v1", target))
	}
}
