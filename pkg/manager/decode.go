package manager

import (
	"bytes"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/refvol/refvol/pkg/volume"
)

// This file reads the few fields of a watch event that are of use, and steps over the rest:
// managed fields and annotations are often larger than the data. The numbers are those of
// the API's own generated.proto files, where they are for ever.
const (
	eventType, eventObject                  = 1, 2 // meta/v1 WatchEvent
	extensionRaw                            = 1    // runtime RawExtension
	unknownTypeMeta, unknownRaw             = 1, 2 // runtime Unknown
	typeKind                                = 2    // runtime TypeMeta
	metaName, metaNamespace                 = 1, 3 // meta/v1 ObjectMeta
	metaUID, metaVersion, metaAnnotations   = 5, 6, 12
	entryKey, entryValue                    = 1, 2 // an entry of any map
	objectMeta, objectData                  = 1, 2 // core/v1 ConfigMap and Secret
	configMapBinaryData, configMapImmutable = 3, 4
	secretImmutable                         = 5
)

// envelope is what each object of the API begins with in protobuf.
const envelope = "k8s\x00"

// decodeEvent decodes one event of a watch of objects of a kind. What it returns shares no
// memory with frame. The error is errUnreadable, or the API error that an event carries.
func decodeEvent(kind volume.Kind, frame []byte) (event, error) {
	var (
		e   event
		raw []byte
	)
	ok := eachField(frame, func(number protowire.Number, value []byte, _ uint64) bool {
		switch number {
		case eventType:
			e.kind = eventKind(value)
		case eventObject:
			return eachField(value, func(number protowire.Number, value []byte, _ uint64) bool {
				if number == extensionRaw {
					raw = value
				}
				return true
			})
		}
		return true
	})
	if !ok {
		return event{}, errUnreadable
	}
	if e.kind == watch.Error {
		return event{}, statusOf(raw)
	}
	d := objectDecoder{kind: kind, object: &volume.Object{Ref: volume.Ref{Kind: kind}}, data: map[string][]byte{}, binaryData: map[string][]byte{}}
	body, enveloped := bytes.CutPrefix(raw, []byte(envelope))
	if !enveloped || !eachField(body, d.unknown) {
		return event{}, errUnreadable
	}
	e.resourceVersion = d.object.ResourceVersion
	if e.kind == watch.Bookmark {
		e.initialEventsEnd = d.initialEventsEnd
		return e, nil
	}
	e.object = d.result()
	return e, nil
}

// eventKind spares the copy of a type that is known.
func eventKind(value []byte) watch.EventType {
	for _, kind := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark} {
		if string(value) == string(kind) {
			return kind
		}
	}
	return watch.EventType(value)
}

// objectDecoder collects the fields of one object. Its values are parts of the frame until
// result.
type objectDecoder struct {
	kind             volume.Kind
	object           *volume.Object
	data, binaryData map[string][]byte
	initialEventsEnd bool
}

func (d *objectDecoder) unknown(number protowire.Number, value []byte, _ uint64) bool {
	switch number {
	case unknownTypeMeta:
		return eachField(value, func(number protowire.Number, value []byte, _ uint64) bool {
			return number != typeKind || string(value) == string(d.kind)
		})
	case unknownRaw:
		return eachField(value, d.field)
	}
	return true
}

func (d *objectDecoder) field(number protowire.Number, value []byte, flag uint64) bool {
	switch {
	case number == objectMeta:
		return eachField(value, d.meta)
	case number == objectData:
		return addEntry(d.data, value)
	case d.kind == volume.ConfigMap && number == configMapBinaryData:
		return addEntry(d.binaryData, value)
	case d.kind == volume.ConfigMap && number == configMapImmutable, d.kind == volume.Secret && number == secretImmutable:
		d.object.Immutable = flag != 0
	}
	return true
}

func (d *objectDecoder) meta(number protowire.Number, value []byte, _ uint64) bool {
	switch number {
	case metaName:
		d.object.Name = string(value)
	case metaNamespace:
		d.object.Namespace = string(value)
	case metaUID:
		d.object.UID = types.UID(value)
	case metaVersion:
		d.object.ResourceVersion = string(value)
	case metaAnnotations:
		key, value, ok := entry(value)
		if string(key) == metav1.InitialEventsAnnotationKey && string(value) == "true" {
			d.initialEventsEnd = true
		}
		return ok
	}
	return true
}

// result returns the object, whose values it puts into one piece of memory of their own.
func (d *objectDecoder) result() *volume.Object {
	size := 0
	for _, m := range []map[string][]byte{d.data, d.binaryData} {
		for _, value := range m {
			size += len(value)
		}
	}
	room := make([]byte, 0, size)
	for _, m := range []map[string][]byte{d.data, d.binaryData} {
		for key, value := range m {
			begin := len(room)
			room = append(room, value...)
			m[key] = room[begin:len(room):len(room)]
		}
	}
	d.object.Data = d.data
	if d.kind == volume.ConfigMap {
		d.object.BinaryData = d.binaryData
	}
	return d.object
}

// addEntry adds an entry of a map; the last one of a key counts.
func addEntry(to map[string][]byte, value []byte) bool {
	key, value, ok := entry(value)
	if ok {
		to[string(key)] = value
	}
	return ok
}

// entry returns the key and the value of an entry of a map, either of which is left out
// where it is empty.
func entry(message []byte) (key, value []byte, ok bool) {
	ok = message != nil && eachField(message, func(number protowire.Number, field []byte, _ uint64) bool {
		switch number {
		case entryKey:
			key = field
		case entryValue:
			value = field
		}
		return true
	})
	return key, value, ok
}

// eachField calls f with each field of a message: with the bytes of one that has a length,
// else with nil, and with the number of a varint. It returns false if the message is malformed, or f returns
// false.
func eachField(message []byte, f func(number protowire.Number, value []byte, flag uint64) bool) bool {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		message = message[n:]
		var (
			value []byte
			flag  uint64
		)
		switch kind {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			flag, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 || !f(number, value, flag) {
			return false
		}
		message = message[n:]
	}
	return true
}
