import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;

/** Reads lines of "class version hex" and prints each with the bytes that Kafka's own class gives after reading them. */
public class CodecOracle {
    private static final String[] PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.common.metadata.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.raft.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
        "org.apache.kafka.storage.internals.log.",
    };

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            out.append(words[0]).append(' ').append(words[1]).append(' ').append(answer(words)).append('\n');
        }
        System.out.print(out);
    }

    private static String answer(String[] words) throws Exception {
        Class<?> cls = find(words[0]);
        short version = Short.parseShort(words[1]);
        Message message;
        if (words[2].equals("default")) {
            message = (Message) cls.getConstructor().newInstance();
        } else {
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[2]));
            try {
                message = (Message) cls.getConstructor(Readable.class, short.class)
                    .newInstance(new ByteBufferAccessor(bytes), version);
            } catch (InvocationTargetException e) {
                return e.getCause().toString();
            }
            if (bytes.hasRemaining()) {
                return "left " + bytes.remaining() + " bytes";
            }
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(written), cache, version);
        return HexFormat.of().formatHex(written.array());
    }

    private static Class<?> find(String name) throws ClassNotFoundException {
        for (String prefix : PACKAGES) {
            for (String suffix : new String[] {"Data", ""}) {
                try {
                    return Class.forName(prefix + name + suffix);
                } catch (ClassNotFoundException e) {
                    continue;
                }
            }
        }
        throw new ClassNotFoundException(name);
    }
}
