package kubelet

import (
	"io"
	"net"
	"testing"
)

// abandoned is a stream of a client that went away before the reply to it was sent: reads end, and the library never lets go of a
// writer, nor of who closes the stream.
type abandoned struct{ ever chan struct{} }

func (abandoned) Read([]byte) (int, error) { return 0, io.EOF }

func (a abandoned) Write([]byte) (int, error) {
	<-a.ever
	return 0, io.ErrClosedPipe
}

func (a abandoned) Close() error {
	<-a.ever
	return nil
}

// TestPortForwardOfAnAbandonedStream: the connection to the pod ends, though the stream never does.
func TestPortForwardOfAnAbandonedStream(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s := &Server{}
	s.Forward("ns", "pod", listener.Addr().String())
	stream, done := abandoned{make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(done)
		_ = forwarder{s}.PortForward(t.Context(), "ns/pod", "", 80, stream)
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("an answer")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the pod's end has read something")
	}
	close(stream.ever)
	<-done
}
